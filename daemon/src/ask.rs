//! `exitless io list`, `add`, `remove`, `reload` and `top`: the other side of the control socket.

use crate::control::{Answer, Request};
use crate::output;
use crate::report::Report;
use crate::show;
use anyhow::{Context as _, Result, bail};
use std::io::{BufRead as _, BufReader, ErrorKind, IsTerminal as _, Write as _};
use std::os::unix::{fs::FileTypeExt as _, net::UnixStream};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Whatever is to be done: that somebody is there is answered within so much time, by a daemon.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connects to a daemon's control socket.
///
/// # Errors
///
/// If nobody listens there, with what would be right.
pub fn connect(path: &Path) -> Result<UnixStream> {
    let shown = path.display();
    match UnixStream::connect(path) {
        Ok(socket) => Ok(socket),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            if !path.metadata().is_ok_and(|there| there.file_type().is_socket()) {
                bail!("{shown} is no socket; --control takes a daemon's control socket");
            }
            bail!("no daemon listens at {shown} any more")
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!(
                "no daemon listens at {shown}; --control takes what the daemon's io.toml has as \
                 `control` in [host], or what it was started with as --control"
            )
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!("{shown} is for its daemon's user alone; run this as that user, or as root")
        }
        Err(error) => Err(error).with_context(|| format!("{shown} can't be reached")),
    }
}

/// A daemon that answers.
pub struct Daemon(BufReader<UnixStream>, PathBuf);

impl Daemon {
    pub fn at(path: &Path) -> Result<Daemon> {
        let socket = connect(path)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Daemon(BufReader::new(socket), path.to_owned()))
    }

    fn ask(&mut self, request: &Request) -> Result<Answer> {
        let answer = self.line(request)?;
        serde_json::from_slice(answer.as_bytes()).context("the daemon's answer can't be understood")
    }

    fn line(&mut self, request: &Request) -> Result<String> {
        let line = serde_json::to_string(request)? + "\n";
        self.0.get_mut().write_all(line.as_bytes()).context("the daemon takes no request")?;
        let mut answer = String::new();
        match self.0.read_line(&mut answer) {
            Ok(0) => bail!("the daemon ended before it answered"),
            Ok(_) => Ok(answer),
            Err(error) if error.kind() == ErrorKind::WouldBlock => bail!(
                "{} doesn't answer within {} seconds: it is no daemon's control socket, or its \
                 daemon is stopped",
                self.1.display(),
                PATIENCE.as_secs()
            ),
            Err(error) => Err(error).context("the daemon doesn't answer"),
        }
    }

    /// Has it do something, which may take long: a server is waited for, or changes before it.
    pub fn tell(&mut self, request: &Request) -> Result<()> {
        // Whatever it says, it is one.
        self.line(&Request::List)?;
        self.0.get_ref().set_read_timeout(None)?;
        match self.ask(request)? {
            Answer::Failed(what) => bail!("{}", what.join("\nexitless-io: ")),
            Answer::Noted(what) => {
                what.iter().for_each(|what| eprintln!("exitless-io: {what}"));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub fn report(&mut self) -> Result<Report> {
        match self.ask(&Request::List)? {
            Answer::Report(report) => Ok(report),
            Answer::Failed(what) => bail!("{}", what.join("\nexitless-io: ")),
            Answer::Done | Answer::Noted(_) | Answer::Letter(_) => {
                bail!("the daemon's answer can't be understood")
            }
        }
    }

    /// Shows what is new each `seconds`, so often, or until ended.
    pub fn top(&mut self, seconds: f64, count: Option<u32>) -> Result<()> {
        let mut before = self.report()?;
        let clear = if std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
        let mut shown = 0;
        while count.is_none_or(|count| shown < count) {
            sleep(Duration::from_secs_f64(seconds));
            let now = self.report()?;
            let text = format!("{clear}{}", show::top(&now, &before));
            output::print(&text)?;
            before = now;
            shown += 1;
        }
        Ok(())
    }
}
