//! `headwaterd users VERB`: edits the password file. The broker only reads the file.
//!
//! A password is read as one line from stdin, never from an argument, which other processes could see. The file is
//! replaced as a whole, so a broker that reads it meanwhile sees either the old or the new one. Exit codes: 0 done, 1
//! failed or wrong password, 2 usage, 4 refused.

use std::collections::BTreeSet;
use std::io::{BufRead, Read, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::output::{EXIT_FAILED, EXIT_OK, EXIT_REFUSED, EXIT_USAGE, print, say};
use crate::auth::file::BYTES_MAX;
use crate::auth::users::{self, Users, check_name, new_lines};
use crate::regular_file;

const PASSWORD_BYTES_MAX: u64 = 4096;
/// The most bytes of user names read from stdin.
const NAMES_BYTES_MAX: u64 = 64 << 20;

pub const USAGE: &str = "\
usage: headwaterd users add FILE USER [--scram]
       headwaterd users generate FILE
       headwaterd users remove FILE USER
       headwaterd users list FILE [--json]
       headwaterd users verify FILE USER

  add      add a user, or set a user's password; --scram also stores the keys for SCRAM-SHA-256
  generate create passwords for devices: user names on stdin, one per line; `name:password` lines on stdout. They are
           random, so they are stored in a form that is fast to check: use it for fleets
  remove   remove a user
  list     list the users, with the format of each password
  verify   check a user's password
The other verbs read the password from the first line of stdin. A running broker reloads the file on SIGHUP.
Exit codes: 0 done, 1 failed or not the password, 2 usage, 4 refused.
";

/// Why a verb failed, with its exit code.
struct Exit(i32, String);

fn failed(reason: impl ToString) -> Exit {
    Exit(EXIT_FAILED, reason.to_string())
}

fn refused(reason: impl Into<String>) -> Exit {
    Exit(EXIT_REFUSED, reason.into())
}

/// Runs `users` with the arguments after it and returns the exit code.
pub fn run(arguments: &[String]) -> i32 {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["add", file, user] => add(Path::new(file), user, false),
        ["add", file, user, "--scram"] => add(Path::new(file), user, true),
        ["generate", file] => generate(Path::new(file)),
        ["remove", file, user] => remove(Path::new(file), user),
        ["list", file] => list(Path::new(file), false),
        ["list", file, "--json"] => list(Path::new(file), true),
        ["verify", file, user] => verify(Path::new(file), user),
        ["--help" | "-h"] => return print(USAGE),
        _ => Err(Exit(EXIT_USAGE, USAGE.trim_end().to_owned())),
    };
    match done {
        Ok(()) => EXIT_OK,
        Err(Exit(code, reason)) => {
            say(&format!("headwater users: {reason}"));
            code
        }
    }
}

fn add(file: &Path, user: &str, with_scram: bool) -> Result<(), Exit> {
    check_name(user).map_err(refused)?;
    let text = read_or_begin(file)?;
    let password = read_password()?;
    if password.is_empty() {
        return Err(refused("the password is empty; write it on stdin"));
    }
    let lines = new_lines(user, &password, with_scram).map_err(failed)?;
    let mut text = without(&text, user);
    text.push_str(&lines);
    replace(file, &text)
}

fn read_or_begin(file: &Path) -> Result<String, Exit> {
    match read_text(file) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(failed(format!("cannot read {}: {error}", file.display()))),
    }
}

fn read_text(file: &Path) -> std::io::Result<String> {
    let bytes = regular_file::read(file, BYTES_MAX)?;
    String::from_utf8(bytes).map_err(std::io::Error::other)
}

fn generate(file: &Path) -> Result<(), Exit> {
    let mut text = String::new();
    let mut stdin = std::io::stdin().lock().take(NAMES_BYTES_MAX + 1);
    stdin
        .read_to_string(&mut text)
        .map_err(|error| failed(format!("cannot read user names from stdin: {error}")))?;
    if text.len() as u64 > NAMES_BYTES_MAX {
        let reason = "there are more than 64 MiB of user names; pass them in several runs";
        return Err(refused(reason));
    }
    let names: BTreeSet<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    if names.is_empty() {
        let reason = "no user names given; write them to stdin, one per line";
        return Err(refused(reason));
    }
    let old = read_or_begin(file)?;
    let is_theirs = |line: &&str| {
        let name = line.trim().split_once(':').map(|(name, _)| name);
        name.is_some_and(|name| names.contains(name))
    };
    let kept = old.lines().filter(|line| !is_theirs(line));
    let mut lines: String = kept.map(|line| format!("{line}\n")).collect();
    let mut told = String::new();
    for name in &names {
        check_name(name)
            .map_err(|reason| refused(format!("`{}`: {reason}", name.escape_debug())))?;
        let (password, line) = users::generate(name).map_err(failed)?;
        lines.push_str(&line);
        told.push_str(&format!("{name}:{password}\n"));
    }
    // Print first: otherwise a failed print would leave passwords in the file that nobody knows.
    show(&told, "stdout is closed; nothing was changed")?;
    replace(file, &lines)
}

/// Prints, or fails with this reason.
fn show(text: &str, reason: &str) -> Result<(), Exit> {
    match print(text) {
        EXIT_OK => Ok(()),
        code => Err(Exit(code, reason.to_owned())),
    }
}

fn remove(file: &Path, user: &str) -> Result<(), Exit> {
    let text = read_text(file)
        .map_err(|error| failed(format!("cannot read {}: {error}", file.display())))?;
    let left = without(&text, user);
    if left == text {
        let reason = format!("there is no user `{user}` in {}", file.display());
        return Err(refused(reason));
    }
    replace(file, &left)
}

fn list(file: &Path, as_json: bool) -> Result<(), Exit> {
    let users = Users::load(file).map_err(failed)?;
    let mut rows: Vec<_> = users.iter().collect();
    rows.sort_by_key(|(name, _)| *name);
    let mut text = String::new();
    for (name, user) in rows {
        let password = user.password.as_ref().map(|stored| stored.value.kind());
        if as_json {
            let row = json!({"user": name, "password": password, "scram": user.scram.is_some()});
            text.push_str(&format!("{row}\n"));
        } else {
            let scram = if user.scram.is_some() { " scram" } else { "" };
            text.push_str(&format!("{name}  {}{scram}\n", password.unwrap_or("-")));
        }
    }
    show(&text, "stdout is closed")
}

fn verify(file: &Path, user: &str) -> Result<(), Exit> {
    let users = Users::load(file).map_err(failed)?;
    let password = read_password()?;
    let stored = users.get(user).and_then(|user| user.password.as_ref());
    match stored {
        Some(stored) if stored.value.is(password.as_bytes()) => Ok(()),
        _ => Err(failed("unknown user or wrong password")),
    }
}

fn read_password() -> Result<String, Exit> {
    let mut line = String::new();
    let read = std::io::stdin()
        .lock()
        .take(PASSWORD_BYTES_MAX + 1)
        .read_line(&mut line);
    read.map_err(|error| failed(format!("cannot read the password from stdin: {error}")))?;
    if line.len() as u64 > PASSWORD_BYTES_MAX {
        let reason = format!("the password is longer than {PASSWORD_BYTES_MAX} bytes");
        return Err(refused(reason));
    }
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

/// The text without the lines of a user; all other lines stay unchanged.
fn without(text: &str, user: &str) -> String {
    let is_theirs = |line: &&str| {
        line.trim()
            .strip_prefix(user)
            .is_some_and(|rest| rest.starts_with(':'))
    };
    let kept = text.lines().filter(|line| !is_theirs(line));
    kept.map(|line| format!("{line}\n")).collect()
}

/// Writes a new file beside the old one and replaces the old one with it. A newly created file is readable only by its
/// owner.
fn replace(file: &Path, text: &str) -> Result<(), Exit> {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
    let describe = |error| failed(format!("cannot write {}: {error}", file.display()));
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let fresh: PathBuf = file.with_file_name(name);
    let write = || -> std::io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        let mut out = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)?;
        if let Ok(old) = std::fs::metadata(file) {
            // Root edits the file of the broker's user, who must be able to read the new one.
            let new = out.metadata()?;
            if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
                fchown(&out, Some(old.uid()), Some(old.gid()))?;
            }
            let mode = old.permissions().mode() & 0o777;
            out.set_permissions(std::fs::Permissions::from_mode(mode))?;
        }
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        std::fs::rename(&fresh, file)?;
        regular_file::sync_name(file)
    };
    write().map_err(|error| {
        // Remove the useless partial file. A failure here needs no report: the first error says enough.
        let _ = std::fs::remove_file(&fresh);
        describe(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lines_of_the_very_user_go() {
        let text = "# people\nann:$6$x\nann b:$6$y\nann:$scram-sha-256$z\nannb:$6$q\n";
        assert_eq!(without(text, "ann"), "# people\nann b:$6$y\nannb:$6$q\n");
        assert_eq!(without(text, "eve"), text);
    }

    #[test]
    fn a_file_is_replaced_whole_and_read_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("users");
        assert!(replace(&file, "a\n").is_ok() && replace(&file, "b\n").is_ok());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "b\n");
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
