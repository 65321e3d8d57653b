//! `exitless io list`, `add`, `remove`, `reload` and `top`: the other side of the control socket.

use crate::control::{Answer, Request};
use crate::report::Report;
use crate::show;
use anyhow::{Context as _, Result, bail};
use std::io::{BufRead as _, BufReader, ErrorKind, IsTerminal as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// A daemon that answers.
pub struct Daemon(BufReader<UnixStream>);

impl Daemon {
    pub fn at(path: &Path) -> Result<Daemon> {
        let shown = path.display();
        let socket = match UnixStream::connect(path) {
            Ok(socket) => socket,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                bail!("no daemon listens at {shown} any more")
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!(
                    "no daemon listens at {shown}; --control takes what the daemon's io.toml has as \
                     `control` in [host], or what it was started with as --control"
                )
            }
            Err(error) => return Err(error).with_context(|| format!("{shown} can't be reached")),
        };
        Ok(Daemon(BufReader::new(socket)))
    }

    fn ask(&mut self, request: &Request) -> Result<Answer> {
        let line = serde_json::to_string(request)? + "\n";
        self.0.get_mut().write_all(line.as_bytes()).context("the daemon takes no request")?;
        let mut answer = String::new();
        if self.0.read_line(&mut answer).context("the daemon doesn't answer")? == 0 {
            bail!("the daemon ended before it answered");
        }
        serde_json::from_str(&answer).context("the daemon's answer can't be understood")
    }

    /// Has it do something.
    pub fn tell(&mut self, request: &Request) -> Result<()> {
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
            std::io::stdout().write_all(text.as_bytes()).context("nobody reads the output")?;
            before = now;
            shown += 1;
        }
        Ok(())
    }
}
