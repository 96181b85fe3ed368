//! The text of a scrape: OpenMetrics for those that ask for it, and the older text format for everybody else.
//!
//! The encoder writes OpenMetrics, where a counter is named without the `_total` of its samples. In the older format
//! (`text/plain; version=0.0.4`) a help belongs to the name of the samples, and there are neither units nor an end.

use std::fmt;

use prometheus_client::registry::Registry;

/// A format of the answer to a scrape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    OpenMetrics,
}

const OPEN_METRICS: &str = "application/openmetrics-text";

impl Format {
    /// What the header Accept prefers. Both are served, so nothing is refused.
    pub fn of(accept: Option<&str>) -> Self {
        let (mut open, mut text) = (0.0, 0.0);
        for one in accept.unwrap_or_default().split(',') {
            let mut parts = one.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let quality = parts.find_map(|part| part.strip_prefix("q="));
            let quality = quality.map_or(Ok(1.0), str::parse).unwrap_or(0.0);
            match kind.as_str() {
                OPEN_METRICS => open = quality,
                "text/plain" | "text/*" | "*/*" => text = f64::max(text, quality),
                _ => {}
            }
        }
        match open > 0.0 && open >= text {
            true => Self::OpenMetrics,
            false => Self::Text,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// # Errors
    /// A metric cannot be written.
    pub fn write(self, registry: &Registry) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry)?;
        Ok(match self {
            Self::Text => older(&text),
            Self::OpenMetrics => text,
        })
    }
}

/// The same in the older format.
fn older(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = "";
    for line in text.lines() {
        let Some(about) = line.strip_prefix("# ") else {
            out += line;
            out.push('\n');
            continue;
        };
        match about.split_once(' ') {
            Some(("HELP", rest)) => help = rest,
            Some(("TYPE", rest)) => {
                let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
                let name = match kind {
                    "counter" => format!("{name}_total"),
                    _ => name.to_owned(),
                };
                let help = help.split_once(' ').map_or("", |(_, help)| help);
                out += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
            }
            // `# UNIT` and `# EOF`.
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    #[test]
    fn a_scraper_gets_what_it_prefers() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;\
            q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, format) in [
            (None, Format::Text),
            (Some(""), Format::Text),
            (Some("*/*"), Format::Text),
            (Some("text/html"), Format::Text),
            (Some("text/plain;version=0.0.4"), Format::Text),
            (Some("application/openmetrics-text"), Format::OpenMetrics),
            (
                Some("Application/OpenMetrics-Text; version=1.0.0"),
                Format::OpenMetrics,
            ),
            (Some(prometheus), Format::OpenMetrics),
            (
                Some("application/openmetrics-text;q=0.3, text/plain;q=0.5"),
                Format::Text,
            ),
            (Some("application/openmetrics-text;q=0"), Format::Text),
            (Some("application/openmetrics-text;q=odd"), Format::Text),
        ] {
            assert_eq!(Format::of(accept), format, "{accept:?}");
        }
    }

    #[test]
    fn the_older_format_names_a_counter_as_its_samples_and_has_no_end() {
        let mut registry = Registry::default();
        let (counter, gauge) = (<Counter>::default(), <Gauge>::default());
        counter.inc();
        registry.register("sent", "Sent", counter);
        registry.register("open", "Open", gauge);
        let text = Format::Text.write(&registry).unwrap();
        let expected = "# HELP sent_total Sent.\n# TYPE sent_total counter\nsent_total 1\n\
            # HELP open Open.\n# TYPE open gauge\nopen 0\n";
        assert_eq!(text, expected);
        let text = Format::OpenMetrics.write(&registry).unwrap();
        assert!(
            text.contains("# TYPE sent counter\nsent_total 1\n"),
            "{text}"
        );
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
