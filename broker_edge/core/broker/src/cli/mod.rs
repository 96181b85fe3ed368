//! The command `headwaterd`: arguments, signals, exit codes.
//!
//! One line goes to stdout, when all listeners accept; everything else goes to stderr.

mod check;
mod cluster;
mod events;
mod log;
mod notify;
mod output;
mod ready;
mod users;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::config::{self, Config, ConfigError, Source};
use crate::{Broker, StartOptions, VERSION, changes, logging};
use events::{Event, Events};
use notify::Notify;
use output::{EXIT_CONFIG, EXIT_FAILED, EXIT_OK, print, say};

pub use output::EXIT_USAGE;

const USAGE: &str = "\
usage: headwaterd [--config FILE] [--set KEY=VALUE]...
       headwaterd log VERB ...
       headwaterd users VERB ...
       headwaterd cluster init ...
       headwaterd ready ...

  --config FILE     settings; conf/broker.yaml explains every key
  --set KEY=VALUE   one setting, for example --set listeners.mqtt.bind=127.0.0.1:0
  --log-format F    text or json: format of the log on stderr (broker.log_format)
  --check           check the settings and the files that they name, list lines whose
                    meaning has changed since an older version, and exit
  --print-config    print the resulting settings, and exit
  --print-schema    print the JSON schema of the settings, and exit
  --print-reference print every setting with meaning, limits and default as
                    YAML, or as JSON with --print-reference=json, and exit
  --version         print the version, and exit
  log VERB          inspect, repair, copy or purge a log; headwaterd log --help lists the verbs
  cluster init      make a cluster in etcd, before its nodes start; headwaterd cluster --help
  ready             ask the broker that runs here whether it is ready; headwaterd ready --help
  users VERB        add, generate, remove, list or verify users of a password file

HEADWATER_LISTENERS__MQTT__BIND=... sets listeners.mqtt.bind; every key has such a variable.
HEADWATER_LOG_LEVEL=debug shows more on stderr. SIGHUP reloads users, token
keys, the ACL and certificates.
Exit codes: 0 stopped by a signal, 1 failed, 2 usage, 5 invalid settings.
";

#[derive(Debug, PartialEq, Eq)]
enum Command {
    Run,
    Check,
    PrintConfig,
    /// Print this, whatever the settings are.
    Print(String),
}

#[derive(Debug)]
struct Arguments {
    command: Command,
    file: Option<PathBuf>,
    set: Vec<String>,
}

/// Runs `headwaterd` with the arguments after the program's name and returns its exit code.
pub fn run(arguments: &[String]) -> i32 {
    match arguments.split_first() {
        Some((word, rest)) if word == "log" => return log::run(rest),
        Some((word, rest)) if word == "users" => return users::run(rest),
        Some((word, rest)) if word == "ready" => return ready::run(rest),
        Some((word, rest)) if word == "cluster" => return cluster::run(rest),
        _ => {}
    }
    let arguments = match parse(arguments) {
        Ok(arguments) => arguments,
        Err(reason) => {
            complain(&format!("{reason}; see headwaterd --help"));
            return EXIT_USAGE;
        }
    };
    match arguments.command {
        Command::Print(text) => print(&text),
        _ => with_settings(arguments),
    }
}

fn with_settings(arguments: Arguments) -> i32 {
    let source = Source::with_environment(arguments.file, arguments.set);
    let (config, notes) = match Config::load_with_notes(&source) {
        Ok(loaded) => loaded,
        Err(error) => {
            complain(&error.to_string());
            return exit_code(&error);
        }
    };
    match arguments.command {
        Command::Check => {
            notes.iter().for_each(|note| complain(note));
            let wrong = check::problems(&config);
            wrong.iter().for_each(|sentence| complain(sentence));
            if !wrong.is_empty() {
                return EXIT_CONFIG;
            }
            let changed = changes::notes(&config);
            print(&format!("the settings are valid\n{changed}"))
        }
        Command::PrintConfig => {
            notes.iter().for_each(|note| complain(note));
            print(&config::to_yaml(&config))
        }
        _ => serve(config, &notes),
    }
}

/// An unreadable file is a failure; an error in its contents is an invalid configuration.
fn exit_code(error: &ConfigError) -> i32 {
    match error {
        ConfigError::Unreadable { .. } => EXIT_FAILED,
        _ => EXIT_CONFIG,
    }
}

fn serve(config: Config, notes: &[String]) -> i32 {
    if let Err(reason) = logging::start(config.broker.log_format) {
        complain(&reason);
        return EXIT_CONFIG;
    }
    for note in notes {
        tracing::warn!("{note}");
    }
    raise_open_files();
    let notify = Notify::from_environment();
    // Registered before the start, so that an early signal is not lost.
    let events = match Events::new() {
        Ok(events) => events,
        Err(error) => {
            complain(&format!("cannot wait for signals: {error}"));
            return EXIT_FAILED;
        }
    };
    let mut begin_anew_at = Vec::new();
    let mut is_first = true;
    loop {
        let options = StartOptions {
            stop: Arc::clone(&events.stop),
            begin_anew_at: std::mem::take(&mut begin_anew_at),
            ended: Some(events.on_end()),
        };
        let broker = match Broker::start_with(config.clone(), options) {
            Ok(broker) => broker,
            Err(error) => {
                complain(&error.to_string());
                return EXIT_FAILED;
            }
        };
        let code = match std::mem::take(&mut is_first) {
            true => {
                notify.say(notify::READY);
                print(&ready_line(&broker))
            }
            false => EXIT_OK,
        };
        let event = match code {
            EXIT_OK => events.wait(&broker, &notify),
            _ => Event::Stop,
        };
        if matches!(event, Event::Stop) {
            notify.say(notify::STOPPING);
        }
        broker.shutdown();
        match event {
            // The copy of a node's log is made anew in part, which the log can do only when it is opened.
            Event::BeginAnew(at) if !events.stop.load(Ordering::Acquire) => begin_anew_at = at,
            _ => return code,
        }
    }
}

fn ready_line(broker: &Broker) -> String {
    let of_listener = |listener: &str| {
        let addresses = broker.addresses(listener);
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        addresses.join(",")
    };
    let (flight, admin) = (broker.flight_address(), broker.admin_address());
    let mut line = format!(
        "ready mqtt={} flight={flight} admin={admin}",
        of_listener("mqtt")
    );
    for listener in ["mqtts", "ws", "wss"] {
        let addresses = of_listener(listener);
        if !addresses.is_empty() {
            line.push_str(&format!(" {listener}={addresses}"));
        }
    }
    line.push('\n');
    line
}

/// Raises the limit of open files to the hard limit: each connection takes one, and a shell's default is 1,024.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "could not raise the limit of open files");
    }
}

fn parse(arguments: &[String]) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        command: Command::Run,
        file: None,
        set: Vec::new(),
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let (name, inline) = match argument.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ => (argument.as_str(), None),
        };
        let mut value = || {
            inline
                .clone()
                .or_else(|| rest.next().cloned())
                .ok_or(format!("{name} needs a value"))
        };
        match name {
            "--config" => parsed.file = Some(PathBuf::from(value()?)),
            "--set" => parsed.set.push(value()?),
            "--log-format" => parsed.set.push(format!("broker.log_format={}", value()?)),
            "--check" => parsed.command = Command::Check,
            "--print-config" => parsed.command = Command::PrintConfig,
            "--print-schema" => {
                parsed.command = Command::Print(format!("{:#}\n", config::json_schema()));
            }
            "--print-reference" => {
                parsed.command = Command::Print(match inline.as_deref() {
                    None | Some("yaml") => config::reference_yaml(),
                    Some("json") => format!("{:#}\n", config::reference_json()),
                    Some(other) => {
                        return Err(format!("{name} prints yaml or json, not `{other}`"));
                    }
                });
            }
            "--version" => parsed.command = Command::Print(format!("headwaterd {VERSION}\n")),
            "--help" | "-h" => parsed.command = Command::Print(USAGE.to_owned()),
            _ => return Err(format!("unknown argument `{argument}`")),
        }
    }
    Ok(parsed)
}

fn complain(sentence: &str) {
    say(&format!("headwaterd: {sentence}"));
}

#[cfg(test)]
mod tests {
    use super::{Command, EXIT_CONFIG, EXIT_FAILED, EXIT_USAGE, parse, run};

    fn arguments(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn arguments_may_stand_apart_or_joined() {
        let parsed = parse(&arguments(
            "--config=a.yaml --set log.sync=never --set=broker.loops=2 --check",
        ))
        .unwrap();
        assert_eq!(parsed.command, Command::Check);
        assert_eq!(parsed.file.unwrap().to_str(), Some("a.yaml"));
        assert_eq!(parsed.set, ["log.sync=never", "broker.loops=2"]);
    }

    #[test]
    fn exit_codes_tell_usage_settings_and_failure_apart() {
        assert_eq!(run(&arguments("--confg x")), EXIT_USAGE);
        assert_eq!(run(&arguments("--set")), EXIT_USAGE);
        assert_eq!(
            run(&arguments("--check --set log.snyc=always")),
            EXIT_CONFIG
        );
        assert_eq!(
            run(&arguments("--check --config no/such/file")),
            EXIT_FAILED
        );
    }
}
