//! Parses the command line into a plan.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use headwater_mqtt::{QoS, Version};

use crate::connection::Connection;
use crate::mix::{Mix, WEIGHTS_MAX};
use crate::plan::{Limit, Pace, Plan, Scenario};

pub const USAGE: &str = "\
usage: headwater bench SCENARIO [OPTIONS]

  pub       publishers only; latency: publish to acknowledgement
  sub       --publishers publish to --connections subscribers; latency: publish to delivery
  pair      one subscriber for each publisher; latency: publish to delivery
  connect   clients connect and disconnect; latency: start of connecting to CONNACK

  --mqtt ADDRESS               the broker: HOST[:PORT], mqtt://, mqtts://HOST[:PORT], ws:// or wss://HOST[:PORT][/PATH]
                               (HEADWATER_MQTT, else 127.0.0.1:1883)
  --user NAME                  user name (HEADWATER_USER)
  --password-from REFERENCE    its password: file:PATH or env:NAME (HEADWATER_PASSWORD_FROM)
  --token-from REFERENCE       a token in place of a password (HEADWATER_TOKEN_FROM)
  --tls-ca FILE                the authority of the broker's certificate (HEADWATER_TLS_CA, else the system's)
  --tls-cert FILE              the clients' certificate, if the broker asks for one (HEADWATER_TLS_CERT)
  --tls-key FILE               and its key (HEADWATER_TLS_KEY)
  -c, --connections N          publishers, subscribers, pairs, or simultaneous connections (50)
  --publishers N               publishers of `sub` (1)
  -n, --messages N             total messages, or connections
  -d, --duration SECONDS       run time, in place of --messages (10)
  -w, --window N               closed loop: unacknowledged messages per publisher (100)
  -r, --rate N                 open loop: total messages, or connections, per second; latency counts from the intended
                               time
  -s, --size BYTES             payload size, or sizes by weight: 64:9,1024:1 (64)
  -q, --qos 0|1|2              QoS, or QoS by weight: 0:1,1:1 (1)
  --topics N                   topics of each publisher (1)
  --prefix TOPIC               prefix of all topics (bench)
  --client-prefix TEXT         prefix of all client ids, before a number; for users with ids of their own (bench-PID-)
  --protocol 3.1|3.1.1|5       MQTT version (3.1.1)
  --patience SECONDS           give up when nothing arrives for this long (10)
  --pid PID                    also report the CPU time of this broker process on this machine
  --json                       print one JSON object instead of a table

Exit codes: 0 ok, 1 incomplete, 2 usage, 3 cannot connect, 4 refused, 124 timed out, 130 interrupted.
";

pub struct Request {
    pub plan: Plan,
    pub json: bool,
    /// What the user should write differently.
    pub notes: Vec<String>,
}

/// `None` when help was requested.
pub fn parse(arguments: &[String]) -> Result<Option<Request>, String> {
    let mut words = arguments.iter();
    let scenario = match words.next().map(String::as_str) {
        None => return Err("the scenario is missing (pub, sub, pair or connect)".to_owned()),
        Some("--help" | "-h") => return Ok(None),
        Some("pub") => Scenario::Pub,
        Some("sub") => Scenario::Sub,
        Some("pair") => Scenario::Pair,
        Some("connect") => Scenario::Connect,
        Some(other) => return Err(format!("unknown scenario `{other}`")),
    };
    let mut plan = Plan::new(scenario, SocketAddr::from(([127, 0, 0, 1], 1883)));
    let mut connection = Connection::default();
    let mut json = false;
    while let Some(word) = words.next() {
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ => (word.as_str(), None),
        };
        let mut value = || {
            let given = inline.clone().or_else(|| words.next().cloned());
            given.ok_or(format!("{name} needs a value"))
        };
        match name {
            "--help" | "-h" => return Ok(None),
            "--json" => json = true,
            "-c" | "--connections" => plan.connections = number(name, &value()?)?,
            "--publishers" => plan.publishers = number(name, &value()?)?,
            "-n" | "--messages" => plan.limit = Limit::Messages(number(name, &value()?)?),
            "-d" | "--duration" => plan.limit = Limit::Time(seconds(name, &value()?)?),
            "-w" | "--window" => {
                let window = number(name, &value()?)?;
                plan.pace = Pace::Closed { window };
            }
            "-r" | "--rate" => {
                let per_s = number(name, &value()?)?;
                plan.pace = Pace::Open { per_s };
            }
            "-s" | "--size" => plan.sizes = mix(name, &value()?, |text| number(name, text))?,
            "-q" | "--qos" => plan.qos = mix(name, &value()?, qos)?,
            "--topics" => plan.topics = number(name, &value()?)?,
            "--prefix" => plan.prefix = value()?,
            "--client-prefix" => plan.client_prefix = value()?,
            "--protocol" => plan.version = version(&value()?)?,
            "--patience" => plan.patience = seconds(name, &value()?)?,
            "--pid" => plan.broker_pid = Some(number(name, &value()?)?),
            _ if connection.take(name, value)? => {}
            _ => return Err(format!("unknown argument `{word}`")),
        }
    }
    let notes = connection.apply(&mut plan, variable)?;
    Ok(Some(Request { plan, json, notes }))
}

/// The value of an environment variable. An empty variable counts as not set.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{name} needs a number, not `{text}`"))
}

fn seconds(name: &str, text: &str) -> Result<Duration, String> {
    Duration::try_from_secs_f64(number(name, text)?)
        .map_err(|_| format!("{name} needs a time in seconds, not `{text}`"))
}

fn qos(text: &str) -> Result<QoS, String> {
    let level: u8 = number("--qos", text)?;
    QoS::from_u8(level).ok_or(format!("--qos must be 0, 1 or 2, not `{text}`"))
}

fn version(text: &str) -> Result<Version, String> {
    match text {
        "3.1" => Ok(Version::V31),
        "3.1.1" => Ok(Version::V311),
        "5" | "5.0" => Ok(Version::V5),
        _ => Err(format!("--protocol must be 3.1, 3.1.1 or 5, not `{text}`")),
    }
}

/// `VALUE`, or `VALUE:WEIGHT,…`.
fn mix<T: Copy>(
    name: &str,
    text: &str,
    one: impl Fn(&str) -> Result<T, String>,
) -> Result<Mix<T>, String> {
    let weighted: Vec<(T, u32)> = text
        .split(',')
        .map(|part| match part.split_once(':') {
            Some((value, weight)) => Ok((one(value)?, number(name, weight)?)),
            None => Ok((one(part)?, 1)),
        })
        .collect::<Result<_, String>>()?;
    Mix::new(&weighted).ok_or(format!(
        "the weights of {name} must add up to a number from 1 to {WEIGHTS_MAX}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<Request>, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        parse(&words)
    }

    #[test]
    fn words_become_a_plan() {
        let text = "sub -c 9 --publishers=2 --rate 500 -n 70 -s 64:3,1024:1 --qos 2 --mqtt=127.0.0.1:99 --json \
                    --client-prefix north-";
        let request = parsed(text).expect("it is well-formed").expect("no help");
        let plan = request.plan;
        assert!(request.json);
        assert_eq!(
            (plan.scenario, plan.connections, plan.publishers),
            (Scenario::Sub, 9, 2)
        );
        assert_eq!(plan.pace, Pace::Open { per_s: 500.0 });
        assert_eq!(plan.limit, Limit::Messages(70));
        assert_eq!(plan.address.to_string(), "127.0.0.1:99");
        assert_eq!(plan.client_prefix, "north-");
        assert_eq!(plan.qos_max(), QoS::ExactlyOnce);
        assert_eq!(plan.sizes.values().filter(|size| *size == 64).count(), 3);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("", "scenario"),
            ("pubb", "pubb"),
            ("pub --rates 3", "--rates"),
            ("pub --window many", "many"),
            ("pub --window", "--window"),
            ("pub -q 3", "3"),
            ("pub --mqtt nowhere:port", "nowhere:port"),
            ("pub --mqtt http://h:80", "http://h:80"),
            ("pub --tls-ca", "--tls-ca"),
            ("pub -s 10:0", "-s"),
            ("pub --duration=-1", "-1"),
        ] {
            let reason = parsed(text).err().unwrap_or_default();
            assert!(reason.contains(named), "{text}: {reason}");
        }
        assert!(parsed("pub --help").expect("fine").is_none());
    }
}
