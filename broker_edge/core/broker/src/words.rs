//! Enums of which each value has one fixed word, for labels, logs and the configuration.

/// Declares such an enum: the words, [`name`](crate::peer::Transport::name) and the list of all values from one table.
macro_rules! words {
    (
        $(#[$about:meta])*
        pub enum $Name:ident {
            $($(#[$meaning:meta])* $Variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $Name {
            $($(#[$meaning])* $Variant,)+
        }

        impl $Name {
            #[allow(dead_code, reason = "not every enum is listed somewhere")]
            pub const ALL: &'static [Self] = &[$(Self::$Variant),+];

            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $word,)+
                }
            }
        }
    };
}

pub(crate) use words;
