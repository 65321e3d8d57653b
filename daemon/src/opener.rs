//! The process that opens what comes later: files, sockets to listen at, servers.
//!
//! Who serves guests gives that up. This process, which is started before, keeps it, for the
//! folders that may be used later; it is asked by a socket whose other end nobody else has. No
//! front end and no guest reaches it. What takes long, such as a server that doesn't answer, a lock
//! or the look-up of a name, takes its time and nobody else's.
//!
//! Where nothing is given up it is a thread of who serves: there is no other right to keep.
//!
//! Guarantees: one answer for each question, in their order; what was opened comes along with it. A
//! socket's file isn't left behind if the answer can't be given. A daemon that may not have as many
//! files gets the answer without them, and can ask again. It ends with its daemon.
//!
//! Not guaranteed: an end to the waiting for a file system that doesn't answer. What is asked later
//! waits behind it; what is served doesn't.

use crate::build::Entry;
use crate::config::{Uplink, Way};
use crate::disk;
use crate::door::Door;
use crate::letter::Told;
use crate::sandbox::{self, Folders};
use crate::text;
use crate::uplink;
use anyhow::{Context as _, Error, Result, anyhow, bail};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bytes of a message.
const LONGEST: usize = 64 << 10;
/// Descriptors of a message: a listener, and four connections with what they are waited by.
const DESCRIPTORS: usize = 16;

/// What is asked for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Wanted {
    /// What this file says.
    Text(PathBuf),
    /// What this device takes; with `listens`, a socket at which it listens, too; without `opens`,
    /// nothing of its data, which is there.
    Device { entry: Box<Entry>, listens: bool, opens: bool },
    /// A switch's way out.
    Uplink(Uplink),
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
pub enum Found {
    /// It is asked from now on.
    Ready,
    /// A file of memory has it.
    Text,
    /// A listener, if it was asked for, and what the disk's data lies in.
    Device {
        listens: bool,
        data: Option<Told>,
    },
    Uplink,
    /// A sentence.
    Failed(String),
}

/// An answer, and what was opened; or why that didn't come along.
pub type Given<T = Found> = (T, Result<Vec<OwnedFd>>);

/// The side that asks.
pub struct Opener(OwnedFd);

impl Opener {
    /// Starts the process. It can only open what is below the `folders`; without them nothing is
    /// confined, and a thread does it.
    ///
    /// # Errors
    ///
    /// In a sentence.
    pub fn start(folders: Option<&Folders>) -> Result<Opener> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        if folders.is_none() {
            let answer = move || drop(answer(&theirs, None));
            let started = daemon_os::spawn_deaf("opener", answer);
            return started.map(|()| Opener(ours)).context("the system gives no thread");
        }
        // This program itself, also if another one has its place in the file system by now.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("exitless-io").arg("open").env_clear().stdin(Stdio::from(theirs));
        command.spawn().context("the process that opens files can't be started")?;
        drop(command);
        say(&ours, &folders, &[])?;
        match hear(&ours, RecvFlags::empty())? {
            Some((Found::Ready, _)) => Ok(Opener(ours)),
            Some((Found::Failed(why), _)) => bail!("{why}"),
            _ => bail!("the process that opens files can't be understood"),
        }
    }

    /// Asks for something.
    pub fn ask(&self, wanted: &Wanted) -> Result<()> {
        say(&self.0, wanted, &[]).context("the process that opens files isn't asked")
    }

    /// The next answer, if it is there.
    pub fn answer(&self) -> Result<Option<Given>> {
        hear(&self.0, RecvFlags::DONTWAIT)
    }
}

impl AsFd for Opener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The process: its standard input is the socket.
///
/// # Errors
///
/// In a sentence, if nobody asks it or its rights can't be given up.
pub fn run() -> Result<()> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    // A signal that is for all processes of a service is for those that serve.
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::new(AtomicBool::new(false)))?;
    let first = hear::<Option<Folders>>(&socket, RecvFlags::empty());
    let Some((folders, _)) = first.context("a daemon starts this by itself")? else {
        return Ok(());
    };
    let confined = folders.as_ref().map_or(Ok(()), sandbox::enter_opener);
    match confined {
        Ok(()) => say(&socket, &Found::Ready, &[])?,
        Err(error) => return say(&socket, &Found::Failed(format!("{error:#}")), &[]),
    }
    answer(&socket, folders.as_ref())
}

/// Answers until nobody asks.
fn answer(socket: &OwnedFd, folders: Option<&Folders>) -> Result<()> {
    while let Some((wanted, _)) = hear(socket, RecvFlags::empty())? {
        let mut door = None;
        // An interface lies in no folder.
        let folders =
            folders.filter(|_| !matches!(&wanted, Wanted::Uplink(it) if it.is_interface()));
        let outside = folders.map(|folders| outside(&wanted, folders));
        let (found, with) = find(wanted, &mut door)
            .map_err(|error| explained(error, outside))
            .unwrap_or_else(|error| (Found::Failed(format!("{error:#}")), Vec::new()));
        let with: Vec<_> = with.iter().map(AsFd::as_fd).collect();
        // Who asked is gone, and nobody else asks.
        if tell(socket, found, &with, door.as_ref()).is_err() {
            break;
        }
    }
    Ok(())
}

/// Answers, with what was opened; or, if that can't be sent, with the reason: the system may have
/// as many descriptors under way as it lets a user have. Of what failed no socket is left by the
/// time that it is told.
fn tell(
    socket: &OwnedFd,
    found: Found,
    with: &[BorrowedFd<'_>],
    made: Option<&Door>,
) -> Result<()> {
    let leave_nothing = || made.into_iter().for_each(Door::close);
    if matches!(found, Found::Failed(_)) {
        leave_nothing();
    }
    let Err(error) = say(socket, &found, with) else { return Ok(()) };
    leave_nothing();
    say(socket, &Found::Failed(format!("what was opened can't be sent: {error:#}")), &[])
}

/// The folder of what is wanted, if the file didn't name it at the start: Landlock lets nothing be
/// opened or made there.
fn outside(wanted: &Wanted, folders: &Folders) -> Option<PathBuf> {
    let Wanted::Device { entry, listens, .. } = wanted else { return None };
    let socket = Some(entry.way().path()).filter(|_| *listens);
    let of = |path: Option<&Path>, among: &BTreeSet<PathBuf>| {
        let own = sandbox::folder(path?);
        (!among.iter().any(|folder| own.starts_with(folder))).then_some(own)
    };
    of(socket, &folders.sockets).or_else(|| of(entry.file(), &folders.write))
}

/// A refusal that may have its reason in Landlock says what helps.
fn explained(error: Error, outside: Option<Option<PathBuf>>) -> Error {
    let kinds = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    let is_refused = kinds.into_iter().any(|cause| cause.kind() == ErrorKind::PermissionDenied);
    match outside.filter(|_| is_refused) {
        None => error,
        // Its rules are for folders as they are at the start, and not for what is mounted there.
        Some(None) => anyhow!(
            "{error:#}; if its folder was made or mounted after the daemon was started, \
             `exitless-io upgrade` may open it"
        ),
        Some(Some(folder)) => anyhow!(
            "{error:#}; what is opened later has to be in a folder that the file named when the \
             daemon was started: add {} to `paths` of [host], and restart it",
            folder.display()
        ),
    }
}

fn find(wanted: Wanted, made: &mut Option<Door>) -> Result<(Found, Vec<OwnedFd>)> {
    match wanted {
        Wanted::Text(path) => {
            let text = std::fs::read(&path);
            let text = text.with_context(|| format!("{} can't be read", path.display()))?;
            Ok((Found::Text, vec![text::given(&text)?]))
        }
        Wanted::Uplink(asked) => Ok((Found::Uplink, vec![uplink::opened(&asked)?])),
        Wanted::Device { entry, listens, opens } => {
            let mut with = Vec::new();
            if let (Way::Socket(path), true) = (entry.way(), listens) {
                let door = made.insert(Door::listen(path)?);
                with.extend(door.listener().map(|one| one.try_clone_to_owned()).transpose()?);
            }
            let data = match &*entry {
                Entry::Disk(disk) if opens => disk::opened(&disk.backing, disk.read_only)?,
                Entry::Disk(_) | Entry::Network(_) => None,
            };
            let told = data.as_ref().map(Told::of);
            data.into_iter().for_each(|data| with.extend(data.files));
            Ok((Found::Device { listens, data: told }, with))
        }
    }
}

/// Sends a message. Who doesn't take it at once is gone: it takes one at a time.
fn say(socket: &OwnedFd, what: &impl Serialize, with: &[BorrowedFd<'_>]) -> Result<()> {
    let text = serde_json::to_vec(what)?;
    if text.len() > LONGEST {
        bail!("this is more than {LONGEST} bytes");
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !with.is_empty() && !control.push(SendAncillaryMessage::ScmRights(with)) {
        bail!("there are too many descriptors");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match sendmsg(socket, &[IoSlice::new(&text)], &mut control, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("the other process takes nothing"),
        }
    }
}

/// The next message. None: the other side ended, or, without waiting, there is none.
fn hear<T: DeserializeOwned>(socket: &OwnedFd, flags: RecvFlags) -> Result<Option<Given<T>>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; LONGEST];
    let received = loop {
        let into = &mut [IoSliceMut::new(&mut bytes)];
        match recvmsg(socket, into, &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error).context("the process that opens files can't be heard"),
        }
    };
    if received.bytes == 0 {
        if flags.contains(RecvFlags::DONTWAIT) {
            bail!("the process that opens files is gone");
        }
        return Ok(None);
    }
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    let mut with = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            with.extend(rights);
        }
    }
    let what = serde_json::from_slice(&bytes[..received.bytes]);
    let what = what.context("the process that opens files can't be understood")?;
    let with = match is_cut {
        true => Err(Error::msg("this program may not have as many files: raise its limit")),
        false => Ok(with),
    };
    Ok(Some((what, with)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets() -> (OwnedFd, OwnedFd) {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        socketpair(AddressFamily::UNIX, kind, flags, None).expect("two sockets")
    }

    /// It isn't the end of all that is asked later.
    #[test]
    fn what_cant_be_sent_is_said() {
        let (ours, theirs) = sockets();
        let many = [theirs.as_fd(); 2 * DESCRIPTORS];
        tell(&theirs, Found::Uplink, &many, None).expect("it is heard");
        let heard = hear(&ours, RecvFlags::DONTWAIT).expect("it is there");
        let Some((Found::Failed(why), _)) = heard else { panic!("it failed") };
        assert!(why.contains("there are too many descriptors"), "{why}");
        tell(&theirs, Found::Uplink, &many[..1], None).expect("it is heard");
        let heard = hear::<Found>(&ours, RecvFlags::DONTWAIT).expect("it is there");
        let with = heard.map(|(_, with)| with.map(|with| with.len()).ok());
        assert_eq!(with, Some(Some(1)));
        drop(ours);
        assert!(tell(&theirs, Found::Uplink, &[], None).is_err(), "nobody hears it");
    }

    /// Who is told may make a socket there.
    #[test]
    fn what_failed_has_left_nothing_when_it_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let (ours, theirs) = sockets();
        let there = path.clone();
        let asks = std::thread::spawn(move || {
            (0..200).all(|_| {
                let failed =
                    matches!(hear(&ours, RecvFlags::empty()), Ok(Some((Found::Failed(_), _))));
                failed && !there.exists() && say(&ours, &Found::Ready, &[]).is_ok()
            })
        });
        let many = [theirs.as_fd(); 2 * DESCRIPTORS];
        for turn in 0..200 {
            let door = Door::listen(&path).expect("a socket");
            let told = match turn % 2 {
                0 => tell(&theirs, Found::Failed("so".into()), &[], Some(&door)),
                _ => tell(&theirs, Found::Uplink, &many, Some(&door)),
            };
            told.expect("it is heard");
            // It has looked.
            if !matches!(hear::<Found>(&theirs, RecvFlags::empty()), Ok(Some(_))) {
                break;
            }
        }
        assert!(asks.join().expect("it ends"), "a socket is left");
    }
}
