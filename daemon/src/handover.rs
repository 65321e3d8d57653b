//! Another program goes on with all that is served here, its front ends among it, and they don't
//! notice: `exitless io upgrade`.
//!
//! The one that comes asks at the control socket. The one that goes holds all rings ([`settle`]:
//! all that was taken is answered), and writes down what it serves; descriptors come along, the
//! disks' locks with them. The one that comes makes all of it anew, gives up what it doesn't need,
//! and says `taken`; the one that goes says `yours`, and ends.
//!
//! Guarantees: at any time one of the two serves at most: the one that goes from before it is asked
//! until it says `yours`, the one that comes from when it hears that. If anything fails before, or
//! takes longer than [`PATIENCE`], the one that goes goes on; the one that comes changes no ring
//! after [`HURRY`], or once the other one has said so. One front end that can't be gone on with
//! ends alone. What a front end had said is taken by
//! the same state machine as what front ends say.
//!
//! Not guaranteed: that a front end whose word `yours` gets lost is served: both end then, as after
//! a crash. What was counted of a ring counts for its device; limits begin anew.
//!
//! [`settle`]: crate::settle

use crate::ask;
use crate::build;
use crate::connection::Hands;
use crate::control::{Answer, Request};
use crate::device::Kind;
use crate::door::Door;
use crate::foreign::{Foreign, Unclosed};
use crate::home::{Home, Known};
use crate::letter::{Asked, Connection, Device, Letter, Said, Told, VERSION};
use crate::passing::Passing;
use crate::report::Numbers;
use crate::socket::Socket;
use crate::supervisor;
use crate::uplink::Uplink;
use anyhow::{Context as _, Result, bail};
use rustix::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;
use vhost_user::Header;

/// How long one program waits for the other, all in all.
const PATIENCE: Duration = Duration::from_secs(20);
/// A daemon that isn't stopped answers within so many seconds that it is there; and after so many
/// without a letter it is said what is waited for.
const SILENT: u64 = 5;
/// How long the one that comes changes rings at most: well before the one that goes gives up, which
/// goes on with them then.
const HURRY: Duration = Duration::from_secs(15);
/// What the two say at the end.
const TAKEN: &str = "taken";
const YOURS: &str = "yours";

/// Gives all away to the program at this socket, if it takes it.
///
/// # Errors
///
/// In a sentence: all goes on here.
pub fn give(home: &mut Home, socket: &OwnedFd, asked: Asked) -> Result<()> {
    let Asked { version, process } = asked;
    if version != VERSION {
        bail!("this daemon hands over as version {VERSION}, and {version} is asked for");
    }
    if home.is_waiting() {
        bail!("a ring is being stopped; try again");
    }
    if !home.rings.controllers.is_empty() {
        bail!(
            "a disk is on an NVMe controller, which has one program; restart this daemon instead: \
             front ends that connect again go on"
        );
    }
    home.rings.settle()?;
    let given = offer(home, socket);
    match given {
        Ok(()) => {
            home.is_given = true;
            supervisor::replaced_by(process);
            eprintln!("exitless-io: process {process} serves from now on");
        }
        Err(_) => home.rings.resume(),
    }
    given
}

fn offer(home: &mut Home, socket: &OwnedFd) -> Result<()> {
    let mut passing = Passing::new(socket, PATIENCE);
    let (letter, descriptors, foreign) = write(home)?;
    let text = serde_json::to_string(&Answer::Letter(Box::new(letter)))?;
    passing.say(&(text + "\n"))?;
    let borrowed: Vec<_> = descriptors.iter().map(|one| one.as_fd()).collect();
    let given = passing.give(&borrowed);
    for (_, one) in descriptors.into_iter().enumerate().filter(|(at, _)| foreign.contains(at)) {
        drop(Foreign::new(one, &Unclosed::default()));
    }
    given?;
    match passing.hear().context("all goes on here")? {
        word if word == TAKEN => passing.say(&format!("{YOURS}\n")),
        word => bail!("the other program says: {word}"),
    }
}

/// What is served, the descriptors, and which of them are of messages that aren't whole.
fn write(home: &mut Home) -> Result<(Letter, Vec<OwnedFd>, Vec<usize>)> {
    let counted = home.report().devices;
    let Home { rings, known, missing, clients, connections, doors, handed, .. } = home;
    let mut all = Vec::new();
    let copy = |one: rustix::fd::BorrowedFd<'_>| {
        one.try_clone_to_owned().context("this program may not have as many files")
    };
    let mut desks = [None, None];
    for (desk, place) in clients.desks().into_iter().zip(&mut desks) {
        if let Some((path, listener)) = desk {
            all.push(copy(listener)?);
            *place = Some(path.to_owned());
        }
    }
    let mut free = Vec::new();
    for (path, listener) in handed.all() {
        all.push(copy(listener)?);
        free.push(path.to_owned());
    }
    let mut devices = Vec::new();
    for Known { entry, place } in known.iter() {
        let door = doors.get(*place).and_then(Option::as_ref).context("a device has no door")?;
        let listener = door.listener();
        listener.into_iter().try_for_each(|one| copy(one).map(|one| all.push(one)))?;
        let device = rings.served.devices.get(*place).context("a device is gone")?;
        let data = match &device.kind {
            Kind::Disk(disk) => disk.data()?,
            Kind::Port(_) => None,
        };
        let told = data.as_ref().map(Told::of);
        data.into_iter().for_each(|data| all.extend(data.files));
        let counted = counted.iter().find(|one| one.name == device.name);
        devices.push(Device {
            entry: entry.clone(),
            listens: listener.is_some(),
            socket_file: door.file().map(Path::to_owned),
            data: told,
            ended: device.ended.clone(),
            counted: counted.map_or(Numbers::default(), |one| Numbers::from(&one.all())),
        });
    }
    let mut uplinks = Vec::new();
    // One whose TAP was removed is nothing to go on with; of an interface the socket alone says
    // that such may come, and it is made anew there.
    let goes = |uplink: &Uplink| uplink.is_interface() || !uplink.is_gone();
    for (_, uplink) in rings.served.uplinks.iter().filter(|(_, uplink)| goes(uplink)) {
        all.push(copy(uplink.as_fd())?);
        uplinks.push(uplink.asked().clone());
    }
    let (mut told, mut foreign) = (Vec::new(), Vec::new());
    for (_, connection) in connections.iter() {
        let device = known.iter().position(|known| known.place == connection.device);
        all.push(copy(connection.socket().as_fd())?);
        let (came, with) = connection.socket().came();
        let (came, descriptors) = (came.to_vec(), with.len());
        for one in with.iter().filter_map(Foreign::borrow) {
            foreign.push(all.len());
            all.push(copy(one)?);
        }
        let (said, handles) = connection.said(rings);
        handles.into_iter().try_for_each(|one| copy(one).map(|one| all.push(one)))?;
        let said = said.into_iter().map(|said| Said {
            request: said.request as u32,
            payload: said.payload,
            descriptors: said.handles.len(),
        });
        let device = device.context("a device is gone")?;
        told.push(Connection { device, came, descriptors, said: said.collect() });
    }
    let [control, metrics] = desks;
    let letter = Letter {
        folder: home.folder.clone(),
        file: home.file.clone(),
        sandbox: home.sandbox.clone(),
        control,
        metrics,
        handed: free,
        devices,
        missing: missing.all().to_vec(),
        uplinks,
        connections: told,
        descriptors: all.len(),
    };
    Ok((letter, all, foreign))
}

/// Takes over from the daemon at this control socket, and serves until ended.
///
/// # Errors
///
/// In a sentence. Before this program says that it serves, the other one goes on.
pub fn take(control: &Path, no_sandbox: bool) -> Result<()> {
    let mut home = crate::home()?;
    let shown = control.display();
    let socket = OwnedFd::from(ask::connect(control)?);
    let mut passing = Passing::new(&socket, HURRY);
    // Whatever it says, it is one, and isn't stopped.
    passing.say(&(serde_json::to_string(&Request::List)? + "\n"))?;
    if passing.is_silent(SILENT) {
        bail!(
            "{shown} doesn't answer within {SILENT} seconds: it is no daemon's control socket, its \
             daemon is stopped, or another program is just taking over"
        );
    }
    passing.hear()?;
    // What comes later than in a hurry couldn't be taken any more.
    let mut passing = Passing::new(&socket, HURRY);
    let asked = Asked { version: VERSION, process: std::process::id() };
    passing.say(&(serde_json::to_string(&Request::Upgrade(asked))? + "\n"))?;
    if passing.is_silent(SILENT) {
        eprintln!(
            "exitless-io: the daemon's disks haven't ended what they were asked for within \
             {SILENT} seconds; they are waited for, {} at most",
            HURRY.as_secs()
        );
    }
    let answer = passing.hear().context("the daemon stays")?;
    let letter = match serde_json::from_slice(answer.as_bytes()) {
        Ok(Answer::Letter(letter)) => letter,
        Ok(Answer::Failed(why)) => bail!("the daemon stays: {}", why.join("; ")),
        _ => bail!("the daemon's answer can't be understood"),
    };
    let mut descriptors = passing.take(letter.descriptors)?.into_iter();
    let connections = read(&mut home, *letter, &mut descriptors)?;
    if no_sandbox {
        home.sandbox = None;
    }
    crate::confine(&mut home)?;
    connect(&mut home, connections, &mut descriptors, &passing)?;
    passing.say(&format!("{TAKEN}\n"))?;
    // To leave now is the one thing that might end both, so the other one's time is waited for.
    passing.wait_until(PATIENCE);
    match passing.hear().context("the daemon stays")? {
        word if word == YOURS => {}
        word => bail!("the daemon says: {word}"),
    }
    drop(passing);
    drop(socket);
    crate::run_home(&mut home)
}

/// Makes all but the front ends.
fn read(
    home: &mut Home,
    letter: Letter,
    descriptors: &mut impl Iterator<Item = OwnedFd>,
) -> Result<Vec<Connection>> {
    let mut next = || descriptors.next().context("a descriptor didn't come along");
    let shown = letter.folder.display().to_string();
    std::env::set_current_dir(&letter.folder).with_context(|| format!("{shown} isn't there"))?;
    (home.file, home.sandbox, home.folder) = (letter.file, letter.sandbox, letter.folder);
    let control = letter.control.map(|path| Ok::<_, anyhow::Error>((path, next()?))).transpose()?;
    let metrics = letter.metrics.map(|path| Ok::<_, anyhow::Error>((path, next()?))).transpose()?;
    home.clients.take_over(control, metrics, &home.waits)?;
    home.missing.take_over(letter.missing);
    for path in letter.handed {
        home.handed.keep(&path, Some(next()?.into()));
    }
    for device in letter.devices {
        let Device { entry, listens, socket_file, data, counted, ended } = device;
        let door = match listens {
            true => Door::listening(next()?.into(), socket_file)?,
            false => Door::connecting(entry.way().path()),
        };
        let data = data.map(|told| told.with(&mut next)).transpose()?;
        let name = entry.name().to_owned();
        let made = build::device(&entry, data, &mut home.rings, &mut home.switches);
        let mut made = made.with_context(|| name)?;
        (made.gone, made.ended) = (counted.counts(), ended);
        let place = home.add_device(made, door)?;
        home.known.push(Known { entry, place });
    }
    for asked in &letter.uplinks {
        let added = home.add_uplink(asked, Some(next()?));
        added.with_context(|| format!("uplink of {}", asked.switch))?;
    }
    Ok(letter.connections)
}

/// Fails if the one that goes may go on by itself: it says nothing before it is answered, so what
/// it says is that it has given up.
fn still_waits(passing: &Passing<'_>) -> Result<()> {
    if passing.has_more() {
        bail!("the daemon stays: it has given up waiting");
    }
    if passing.age() > HURRY {
        bail!("the daemon stays: this took too long");
    }
    Ok(())
}

/// Goes on with the front ends: a ring that starts is changed, which nobody else may serve then. A
/// front end that said what can't be gone on with, such as memory that has become shorter, ends
/// alone.
fn connect(
    home: &mut Home,
    connections: Vec<Connection>,
    descriptors: &mut impl Iterator<Item = OwnedFd>,
    passing: &Passing<'_>,
) -> Result<()> {
    let mut next = || descriptors.next().context("a descriptor didn't come along");
    still_waits(passing)?;
    for one in connections {
        let device = home.known.get(one.device).context("a device isn't there")?.place;
        let socket = next()?;
        let unclosed = home.unclosed(device);
        let foreign = |file| Foreign::new(file, &unclosed);
        let with = (0..one.descriptors).map(|_| next().map(foreign)).collect::<Result<_>>()?;
        let socket = Socket::with(socket, unclosed.clone(), &one.came, with)?;
        let place = home.take_in(device, socket)?;
        let said = one.said.into_iter().map(|said| {
            let with = (0..said.descriptors).map(|_| next().map(foreign)).collect::<Result<_>>();
            with.map(|with| (said, with))
        });
        // All that came along is taken first, whatever becomes of it.
        let said = said.collect::<Result<Vec<_>>>()?;
        for (Said { request, payload, .. }, with) in said {
            still_waits(passing)?;
            let header = Header { request, need_reply: false, size: payload.len() };
            let Home { rings, connections, waits, .. } = &mut *home;
            let connection = connections.get_mut(place).context("a front end is gone")?;
            let heard = connection.believe(header, &payload, with, &mut Hands { rings, waits });
            if let Err(error) = heard {
                home.end(place, Some(error.context("the front end can't be gone on with")));
                break;
            }
        }
        home.watch(device)?;
    }
    Ok(())
}
