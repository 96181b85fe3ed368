//! User, password and token, and the PEM files of TLS, which the command line names by reference: `file:PATH` or
//! `env:NAME`. A literal secret is refused, because it would appear in process lists and in the shell's history.
//!
//! The rules and variables are those of the `headwater` command.

use std::fmt;
use std::fs::File;
use std::io::Read;

/// Longer files are cut off; no secret and no chain of certificates is as long.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// References as given on the command line or, where absent, in the environment.
#[derive(Debug, Default)]
pub struct Given {
    pub user: Option<String>,
    pub password: Option<String>,
    pub token: Option<String>,
}

/// The user name and password of a CONNECT.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    pub username: Option<String>,
    pub password: Option<Vec<u8>>,
}

/// Without the password.
impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Credentials({:?})", self.username)
    }
}

impl Given {
    /// Fills what the command line has left out. A password there replaces a token in the environment, and the reverse.
    pub fn or_from(mut self, variable: impl Fn(&str) -> Option<String>) -> Self {
        if self.token.is_none() {
            self.user = self.user.or_else(|| variable("HEADWATER_USER"));
        }
        if self.password.is_none() && self.token.is_none() {
            self.password = variable("HEADWATER_PASSWORD_FROM");
            self.token = variable("HEADWATER_TOKEN_FROM");
        }
        self
    }

    /// Reads the secrets. A token is sent as the password.
    pub fn read(self) -> Result<Credentials, String> {
        let (username, password) = match (self.user, self.password, self.token) {
            (_, Some(_), Some(_)) => return Err("give a password or a token, not both".to_owned()),
            (None, Some(_), None) | (Some(_), None, None) => {
                return Err(
                    "a user and a password belong together: give --user and --password-from"
                        .to_owned(),
                );
            }
            (None, None, None) => return Ok(Credentials::default()),
            (user, None, Some(token)) => {
                let user = user.unwrap_or_else(|| "token".to_owned());
                (user, first_line(&token, "the token")?)
            }
            (Some(user), Some(password), None) => (user, first_line(&password, "the password")?),
        };
        Ok(Credentials {
            username: Some(username),
            password: Some(password),
        })
    }
}

/// The first line of a secret, without its line end.
fn first_line(reference: &str, what: &str) -> Result<Vec<u8>, String> {
    let mut secret = read(reference, what)?;
    if let Some(end) = secret.iter().position(|byte| *byte == b'\n') {
        secret.truncate(end);
    }
    if secret.last() == Some(&b'\r') {
        secret.pop();
    }
    if secret.is_empty() {
        return Err(format!("{what}: {reference} is empty or missing"));
    }
    Ok(secret)
}

/// The content of a reference; `what` names it in errors, which never repeat a secret.
pub fn read(reference: &str, what: &str) -> Result<Vec<u8>, String> {
    match reference.split_once(':') {
        Some(("file", path)) if !path.is_empty() => {
            let mut content = Vec::new();
            File::open(path)
                .and_then(|file| file.take(SECRET_BYTES_MAX).read_to_end(&mut content))
                .map_err(|error| {
                    format!(
                        "{what}: cannot read {path} ({error}): check the path and its permissions"
                    )
                })?;
            Ok(content)
        }
        Some(("env", name)) if !name.is_empty() => {
            // The name comes from the user, and the library would panic on such names.
            let is_name = !name.contains(['=', '\0']);
            let value = is_name.then(|| std::env::var_os(name)).flatten();
            Ok(value
                .unwrap_or_default()
                .into_string()
                .map_err(|_| format!("{what}: {reference} is not text"))?
                .into_bytes())
        }
        Some(("secret", place)) if !place.is_empty() => Err(format!(
            "{what}: secret:{place} can be read on Databricks only; here use file:PATH or env:NAME"
        )),
        _ => Err(format!(
            "{what} is given by reference: write file:PATH or env:NAME, never the secret itself"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(user: Option<&str>, password: Option<&str>, token: Option<&str>) -> Given {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Given {
            user: owned(user),
            password: owned(password),
            token: owned(token),
        }
    }

    fn file(content: &str) -> (tempfile::NamedTempFile, String) {
        let file = tempfile::NamedTempFile::new().expect("there is room");
        std::fs::write(file.path(), content).expect("it is writable");
        let reference = format!("file:{}", file.path().display());
        (file, reference)
    }

    #[test]
    fn secrets_are_read_from_where_they_are() {
        let (_kept, reference) = file("s3cret\r\nmore\n");
        let found = given(Some("ann"), Some(&reference), None).read();
        let found = found.expect("the file is there");
        assert_eq!(found.username.as_deref(), Some("ann"));
        assert_eq!(found.password.as_deref(), Some(b"s3cret".as_slice()));
        let found = given(None, None, Some(&reference)).read();
        let found = found.expect("a token needs no user");
        assert_eq!(found.username.as_deref(), Some("token"));
        let path = std::env::var("PATH").expect("tests have one");
        assert_eq!(read("env:PATH", "it"), Ok(path.into_bytes()));
        assert!(given(None, None, None).read() == Ok(Credentials::default()));
    }

    #[test]
    fn the_command_line_goes_before_the_environment() {
        let variable = |name: &str| Some(format!("env:{name}"));
        let found = given(Some("bob"), None, None).or_from(variable);
        assert_eq!(found.user.as_deref(), Some("bob"));
        let password = found.password.as_deref();
        assert_eq!(password, Some("env:HEADWATER_PASSWORD_FROM"));
        assert_eq!(found.token.as_deref(), Some("env:HEADWATER_TOKEN_FROM"));
        let found = given(None, Some("env:A"), None).or_from(variable);
        assert_eq!(
            (found.user.as_deref(), found.token),
            (Some("env:HEADWATER_USER"), None)
        );
        let found = given(None, None, Some("env:A")).or_from(variable);
        assert_eq!((found.user, found.password), (None, None));
    }

    #[test]
    fn what_cannot_be_used_is_said_without_the_secret() {
        let (_kept, empty) = file("\n");
        for (given, named) in [
            (given(Some("a"), Some("s3cret"), None), "file:PATH"),
            (given(Some("a"), Some("file:"), None), "file:PATH"),
            (given(None, None, Some("eyJs3cret.a:b")), "file:PATH"),
            (given(Some("a"), Some("file:/no/f"), None), "/no/f"),
            (given(Some("a"), Some("env:NO_SUCH_"), None), "env:NO_SUCH_"),
            (given(Some("a"), Some("env:A=B"), None), "env:A=B"),
            (given(Some("a"), Some("secret:x/y"), None), "Databricks"),
            (given(Some("a"), Some(&empty), None), "empty"),
            (given(Some("a"), None, None), "belong together"),
            (given(None, Some("env:PATH"), None), "belong together"),
            (
                given(Some("a"), Some("env:A"), Some("env:B")),
                "a password or a token",
            ),
        ] {
            let reason = given.read().err().unwrap_or_default();
            assert!(
                reason.contains(named) && !reason.contains("s3cret"),
                "{reason}"
            );
        }
    }
}
