//! `headwaterd ready`: asks the broker of these settings whether it is ready, for images that have no other program.
//!
//! It asks `GET /readyz` of the admin listener, as a kubelet or a load balancer does.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
};

use super::output::{EXIT_CONFIG, EXIT_FAILED, EXIT_USAGE, print, say};
use crate::config::{ClientAuth, Config, Source};

pub const USAGE: &str = "\
usage: headwaterd ready [--config FILE] [--set KEY=VALUE]... [--timeout SECONDS]

Asks the broker of these settings, on this machine, whether it accepts clients and records.
Exit codes: 0 it does, 1 it does not, or nobody answers, 2 usage, 5 invalid settings.
";

const TIMEOUT_S: f64 = 3.0;
const TIMEOUT_MAX_S: f64 = 3_600.0;

/// The answer of a broker with many partitions that are not ready names each of them.
const ANSWER_MAX: u64 = 1 << 20;

/// Why there is no answer that says `ready`, with the exit code.
struct Exit(i32, String);

fn failed(reason: impl Into<String>) -> Exit {
    Exit(EXIT_FAILED, reason.into())
}

/// Runs `ready` with the arguments after it and returns the exit code.
pub fn run(arguments: &[String]) -> i32 {
    let is_help = |word: &String| word == "--help" || word == "-h";
    if arguments.iter().any(is_help) {
        return print(USAGE);
    }
    match ask(arguments) {
        Ok(()) => print("ready\n"),
        Err(Exit(code, reason)) => {
            say(&format!("headwaterd ready: {reason}"));
            code
        }
    }
}

fn ask(arguments: &[String]) -> Result<(), Exit> {
    let (source, timeout) = parse(arguments).map_err(|reason| Exit(EXIT_USAGE, reason))?;
    let config =
        Config::load(&source).map_err(|error| Exit(super::exit_code(&error), error.to_string()))?;
    let admin = &config.listeners.admin;
    let address = of_this_machine(admin.bind.0);
    if address.port() == 0 {
        let reason = "listeners.admin.bind has port 0, which the broker chooses when it starts: give it a port";
        return Err(Exit(EXIT_CONFIG, reason.to_owned()));
    }
    if admin.tls.client_auth == ClientAuth::Required {
        let reason = "listeners.admin.tls.client_auth is required: ask /readyz with a certificate of a client";
        return Err(Exit(EXIT_CONFIG, reason.to_owned()));
    }
    let nobody = |error: std::io::Error| failed(format!("no answer from {address}: {error}"));
    let stream = TcpStream::connect_timeout(&address, timeout).map_err(nobody)?;
    let mut stream = Limited {
        stream,
        until: Instant::now() + timeout,
    };
    let answer = if admin.tls.is_on() {
        let connection = tls(address.ip()).map_err(|error| failed(error.to_string()))?;
        exchange(&mut StreamOwned::new(connection, stream), address)
    } else {
        exchange(&mut stream, address)
    };
    let answer = answer.map_err(nobody)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split(' ').nth(1) {
        Some("200") => Ok(()),
        Some("503") => Err(failed(format!("not ready: {}", body.trim()))),
        _ => {
            let line = head.lines().next().unwrap_or_default();
            Err(failed(format!(
                "{address} is no broker: it answers `{}`",
                line.escape_debug()
            )))
        }
    }
}

fn parse(arguments: &[String]) -> Result<(Source, Duration), String> {
    let (mut file, mut set, mut timeout_s) = (None, Vec::new(), TIMEOUT_S);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        if !matches!(name, "--config" | "--set" | "--timeout") {
            return Err(format!("unknown argument `{word}`; see --help"));
        }
        let value = inline.or_else(|| words.next().cloned());
        let value = value.ok_or_else(|| format!("{name} needs a value; see --help"))?;
        match name {
            "--config" => file = Some(PathBuf::from(value)),
            "--set" => set.push(value),
            _ => timeout_s = seconds(&value)?,
        }
    }
    Ok((
        Source::with_environment(file, set),
        Duration::from_secs_f64(timeout_s),
    ))
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if value > 0.0 && value <= TIMEOUT_MAX_S => Ok(value),
        _ => Err(format!(
            "--timeout: seconds are needed, above 0 and up to {TIMEOUT_MAX_S}, not `{text}`"
        )),
    }
}

/// A listener on all addresses is asked at that of this machine.
fn of_this_machine(bind: SocketAddr) -> SocketAddr {
    let ip = match bind.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bind.port())
}

fn exchange(stream: &mut (impl Read + Write), address: SocketAddr) -> std::io::Result<String> {
    let mut request = String::new();
    let _ = write!(
        request,
        "GET /readyz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// A connection that ends at a time, however slowly the other side sends.
struct Limited {
    stream: TcpStream,
    until: Instant,
}

impl Limited {
    fn left(&self) -> std::io::Result<Option<Duration>> {
        match self.until.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(Some(left)),
            _ => Err(std::io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

fn tls(ip: IpAddr) -> Result<ClientConnection, Error> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    ClientConnection::new(Arc::new(config), ServerName::IpAddress(ip.into()))
}

/// Accepts every certificate, as the probes of Kubernetes do: no secret is sent, and one that has expired, or was issued
/// for another name, is no reason to start the broker again.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::{of_this_machine, parse, seconds};

    #[test]
    fn a_listener_on_all_addresses_is_asked_on_loopback() {
        let asked = |bind: &str| of_this_machine(bind.parse().unwrap()).to_string();
        assert_eq!(asked("0.0.0.0:8080"), "127.0.0.1:8080");
        assert_eq!(asked("[::]:8080"), "[::1]:8080");
        assert_eq!(asked("192.0.2.1:8080"), "192.0.2.1:8080");
    }

    #[test]
    fn arguments_may_stand_apart_or_joined() {
        let words = ["--config=a.yaml", "--timeout", "0.5", "--set", "a=b"];
        let words: Vec<String> = words.map(str::to_owned).into();
        let (_, timeout) = parse(&words).unwrap();
        assert_eq!(timeout.as_millis(), 500);
        assert!(parse(&["--tiemout".to_owned()]).is_err_and(|reason| reason.contains("--tiemout")));
        assert!(parse(&["--set".to_owned()]).is_err_and(|reason| reason.contains("needs a value")));
        for wrong in ["0", "-1", "nan", "inf", "3601", "x"] {
            assert!(seconds(wrong).is_err_and(|reason| reason.contains("--timeout")));
        }
    }
}
