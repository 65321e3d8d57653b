//! Two network interfaces at a switch that others use, too: what one of them sends, and where the
//! other one wants to have it.
//!
//! Each attack counts what it did; at its end a frame must go from one to the other as if nothing
//! had been. What became of others at the switch is for them to say.

use machine::{
    boot::Boot,
    console::check,
    random::Random,
    virtio::{Virtio, status},
    virtio_net::{self as net, BROADCAST, FRAME, HEADER, Interface, Mac, NETWORK, WANTED},
    virtqueue::{Descriptor, NEXT, WRITE, put},
    wait,
};

/// Checksums and segmentation that are left to the device (5.1.3): CSUM, HOST_TSO4, HOST_TSO6,
/// HOST_ECN; where they are offered.
const LEFT: u64 = 1 | 1 << 11 | 1 << 12 | 1 << 13;
const SEED: u64 = 0xF4A3_E500;
/// Frames that are sent, and slots for them, each of four descriptors.
const FRAMES: u64 = 6_000;
const SLOTS: usize = 32;
const PIECES: u16 = 4;
/// Bytes of a slot.
const SLOT: u64 = 0x1_4000;
/// Frames that must arrive in the end.
const LAST: usize = 50;
/// Commands.
const COMMANDS: u64 = 600;
/// Those who use the switch, and mustn't hear of it.
const OTHERS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// Of IEEE 802.1Q, 8.6.3: no bridge forwards it.
const RESERVED: Mac = [1, 0x80, 0xC2, 0, 0, 0];
const ETHERTYPE: [u8; 2] = [0x88, 0xB5];

/// An interface.
struct Port {
    virtio: Virtio,
    number: usize,
    own: Mac,
}

impl Port {
    /// Sets it up, and waits until its queues are served: what comes before is lost.
    fn start(&self, boot: &Boot) -> bool {
        let features = self.virtio.offered() & (WANTED | LEFT);
        let one = self.interface();
        net::start(&self.virtio, self.number, features, boot)
            && wait::patiently(|| one.sending().is_polled() && one.receiving().is_polled())
    }

    fn interface(&self) -> &'static Interface {
        net::interface(self.number)
    }

    fn is_given_up(&self) -> bool {
        self.virtio.status() & status::NEEDS_RESET != 0
    }
}

/// The two, or a failed check.
fn ports(test: &str, boot: &Boot) -> Option<[Port; 2]> {
    let mut found = Virtio::all(NETWORK);
    let ports = [0, 1].map(|number| {
        let virtio = found.next()?;
        let own = net::mac(&virtio);
        Some(Port { virtio, number, own })
    });
    let [Some(first), Some(second)] = ports else {
        check!(test, false, "fewer than two network devices");
        return None;
    };
    let started = first.start(boot) && second.start(boot);
    check!(test, started, "both start");
    started.then_some([first, second])
}

/// Sends a frame of this head and length that keeps to everything.
fn send(from: &Port, to: Mac, bytes: usize) -> bool {
    let mut frame = [0x5A; FRAME];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from.own);
    frame[12..14].copy_from_slice(&ETHERTYPE);
    wait::patiently(|| from.interface().send(&frame[..bytes]))
}

/// Whether frames go from one to the other, after both were reset.
fn afterwards(test: &str, [first, second]: &[Port; 2], boot: &Boot) {
    let started = first.start(boot) && second.start(boot);
    // No more than there are buffers.
    let went = started && (0..LAST).all(|n| send(first, second.own, 60 + n));
    let came = wait::patiently(|| {
        let mut frame = [0; FRAME];
        second.interface().poll();
        while second.interface().receive(&mut frame).is_some() {}
        second.interface().account().arrived >= LAST as u64
    });
    let odd = second.interface().account().odd;
    let reset = first.virtio.reset() && second.virtio.reset();
    check!(test, went && came && odd == 0 && reset, "afterwards: {went} {came}, {odd} odd");
}

/// Memory of a slot for frames, behind that of the two interfaces.
fn slot_at(boot: &Boot, slot: usize) -> u64 {
    net::memory(boot, 2).start + SLOT * slot as u64
}

/// What a frame begins with: any header of virtio's, addresses, tags, TCP over IPv4 and IPv6 that
/// is right but for some bytes. Gives how many bytes it wrote.
fn write_head(at: u64, ports: &[Port; 2], random: &mut Random) -> u64 {
    let (r, s) = (random.number(), random.number());
    let flags = [0, 0, 1, 1, 1, 0xFF, r as u8, 2][(r >> 8 & 7) as usize];
    let gso = [0, 0, 1, 4, 0x81, 0x84, 3, r as u8][(r >> 11 & 7) as usize];
    let size = [1, 2, 0, 536, 1460, 0xFFFF, 9, s as u16][(r >> 14 & 7) as usize];
    let six = gso & 4 != 0;
    let tcp = if six { 54 } else { 34 };
    let (start, offset) = match r >> 17 & 3 {
        0 => (s as u16, (s >> 16) as u16),
        1 => (tcp, 0xFFFF),
        _ => (tcp, 16),
    };
    let mut head = [0; 12 + 14 + 40 + 60];
    head[0] = flags;
    head[1] = gso;
    let words = [(s >> 32) as u16, size, start, offset, (s >> 48) as u16];
    for (place, word) in head[2..12].chunks_exact_mut(2).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let to = match r >> 20 & 7 {
        0 => BROADCAST,
        1 => RESERVED,
        2 | 3 => OTHERS[(r >> 23 & 1) as usize],
        4 => [1, 0, 0x5E, 0, 0, 1],
        5 => ports[0].own,
        _ => ports[1].own,
    };
    let from = match r >> 24 & 15 {
        0 => OTHERS[0],
        1 => BROADCAST,
        2 => ports[1].own,
        _ => ports[0].own,
    };
    head[12..18].copy_from_slice(&to);
    head[18..24].copy_from_slice(&from);
    let mut end = 24;
    let tag = |vlan: u64| [0x81, 0, (vlan >> 8) as u8, vlan as u8];
    let tags = match r >> 28 & 7 {
        0 => 1,
        1 => 2,
        _ => 0,
    };
    for _ in 0..tags {
        // The others' VLAN is none, which a tag of 0 would name.
        let of = tag([0, 7, s & 0xFFFF, 0xFFF][(s >> 20 & 3) as usize]);
        head[end..end + 4].copy_from_slice(&of);
        end += 4;
    }
    let kind = if six { [0x86, 0xDD] } else { [0x08, 0x00] };
    head[end..end + 2].copy_from_slice(if r >> 31 & 7 == 0 { &ETHERTYPE } else { &kind });
    let ip = end + 2;
    if six {
        // One kind of next header in four is an extension, which leads to itself.
        (head[ip], head[ip + 6]) = (0x60, [6, 6, 0, 60][(s >> 24 & 3) as usize]);
        (head[ip + 40], head[ip + 41]) = ((s >> 26) as u8 & 60, (s >> 34) as u8);
    } else {
        (head[ip], head[ip + 9]) = (0x40 | [5, 5, 15, 4][(s >> 24 & 3) as usize], 6);
    }
    let tcp = ip + if six { 40 } else { 20 };
    head[tcp + 12] |= [0x50, 0x50, 0xF0, 0][(s >> 40 & 3) as usize];
    head.iter().enumerate().for_each(|(i, byte)| put(at + i as u64, *byte));
    head.len() as u64
}

/// Frames of every length, with every header, tag and address, in pieces of any size.
pub fn frames(test: &str, boot: &Boot) {
    let Some(ports) = ports(test, boot) else { return };
    let [first, second] = &ports;
    let ring = first.interface().sending();
    let mut random = Random::new(SEED);
    let mut busy = [false; SLOTS];
    let (mut sent, mut back, mut strange) = (0, 0, 0);
    let mut frame = [0; FRAME];
    let came = wait::patiently(|| {
        while let Some((head, _)) = ring.take() {
            let slot = head as usize / usize::from(PIECES);
            strange += u64::from(busy.get(slot) != Some(&true));
            busy.iter_mut().skip(slot).take(1).for_each(|busy| *busy = false);
            back += 1;
        }
        second.interface().poll();
        while second.interface().receive(&mut frame).is_some() {}
        let Some(slot) = busy.iter().position(|busy| !busy).filter(|_| sent < FRAMES) else {
            return back == FRAMES;
        };
        let at = slot_at(boot, slot);
        write_head(at, &ports, &mut random);
        let r = random.number();
        let bytes = match r & 15 {
            0 => r >> 8 & 31,
            1 => 12 + (r >> 8 & 15),
            2 | 3 => 65_562 + (r >> 8 & 7),
            4..=6 => 1_520 + (r >> 8 & 15),
            7..=9 => r >> 8 & 0xFFFF,
            _ => 60 + (r >> 8 & 0x3FF),
        };
        offer(ring.descriptors(), slot, at, bytes.max(1), r >> 32);
        busy[slot] = true;
        sent += 1;
        ring.publish(slot as u16 * PIECES);
        false
    });
    let given_up = first.is_given_up() || second.is_given_up();
    let account = second.interface().account();
    check!(
        test,
        came && strange == 0 && !given_up && account.odd == 0 && account.arrived > 100,
        "{back} of {FRAMES} frames taken, {strange} strange, given up: {given_up}, {account:?}"
    );
    afterwards(test, &ports, boot);
}

/// Puts a frame into a slot's descriptors, cut into pieces, some of them empty.
fn offer(table: u64, slot: usize, at: u64, bytes: u64, cuts: u64) {
    let first = slot as u16 * PIECES;
    let mut done = 0;
    for piece in 0..PIECES {
        let left = bytes - done;
        let last = piece + 1 == PIECES || (cuts >> piece) & 1 == 0;
        let some = if last { left } else { left.min(cuts >> (8 + 8 * piece) & 0xFF) };
        let (flags, next) = if last { (0, 0) } else { (NEXT, first + piece + 1) };
        Descriptor { address: at + done, bytes: some as u32, flags, next }
            .put(table, first + piece);
        done += some;
        if last {
            break;
        }
    }
}

/// Receive buffers where no memory is, that can't be written, without bytes, in loops, too small;
/// each with a frame for it on its way. What can't be served ends that queue alone.
pub fn buffers(test: &str, boot: &Boot) {
    let Some(ports) = ports(test, boot) else { return };
    let [first, second] = &ports;
    let (memory, end) = (slot_at(boot, 0), boot.memory_end());
    let piece = |address, bytes, flags, next| Descriptor { address, bytes, flags, next };
    // What ends the queue, and what is only too small for any frame.
    let bad: [&[Descriptor]; 10] = [
        &[piece(end, 2048, WRITE, 0)],
        &[piece(end - 1024, 2048, WRITE, 0)],
        &[piece(1 << 40, 2048, WRITE, 0)],
        &[piece(!0xFFF, u32::MAX, WRITE, 0)],
        &[piece(0xFEE0_0000, 2048, WRITE, 0)],
        &[piece(memory, 2048, 0, 0)],
        &[piece(memory, 0, WRITE, 0)],
        &[piece(memory, 2048, WRITE | NEXT, 0)],
        &[piece(memory, 12, WRITE | NEXT, 1), piece(memory, 2048, 0, 0)],
        &[piece(memory, 12, WRITE | NEXT, 200)],
    ];
    let small: [&[Descriptor]; 3] = [
        &[piece(memory, 1, WRITE, 0)],
        &[piece(memory, 12, WRITE, 0)],
        &[piece(memory, 12, WRITE | NEXT, 1), piece(memory + 12, 13, WRITE, 0)],
    ];
    let (mut given_up, mut kept, mut sent) = (0, 0, 0);
    for (chain, ends) in
        bad.iter().map(|chain| (*chain, true)).chain(small.iter().map(|chain| (*chain, false)))
    {
        // In the places of the first buffers, before any of them is taken.
        let started = second.virtio.reset() && second.start(boot);
        let table = second.interface().receiving().descriptors();
        (0..).zip(chain).for_each(|(index, piece)| piece.put(table, index));
        (0..4).for_each(|_| sent += u64::from(started && send(first, second.own, 60)));
        let gone = first.interface().all_sent();
        let told = wait::until(|| second.is_given_up() || !ends) && gone;
        given_up += usize::from(told && ends && second.is_given_up());
        kept += usize::from(told && !ends && !second.is_given_up());
    }
    let whole = !first.is_given_up() && sent == 4 * (bad.len() + small.len()) as u64;
    check!(
        test,
        given_up == bad.len() && kept == small.len() && whole,
        "{given_up} of {} ended their queue, {kept} of {} didn't, who sends goes on: {whole}",
        bad.len(),
        small.len()
    );
    afterwards(test, &ports, boot);
}

/// Commands of every class with data of every length; an address of others' in particular.
pub fn commands(test: &str, boot: &Boot) {
    let Some(ports) = ports(test, boot) else { return };
    let [first, _] = &ports;
    let mut random = Random::new(SEED);
    let (mut answered, mut stolen, mut odd) = (0, 0, 0);
    for _ in 0..COMMANDS {
        let r = random.number();
        let mut data = [0; 512];
        data.iter_mut().for_each(|byte| *byte = random.number() as u8);
        // Of a planned address none but the own one is taken, whoever has it.
        let (class, command) = if r & 3 == 0 {
            data[..6].copy_from_slice(&OTHERS[(r >> 2 & 1) as usize]);
            (1, 1)
        } else {
            ((r >> 8) as u8 % 8, (r >> 16) as u8 % 8)
        };
        // Tables that say they are longer than they are, and longer than any.
        if class == 1 && command == 0 {
            let entries = [0, 1, 64, 65, 80, u32::MAX, 0x2AAA_AAAB, 1 << 31];
            data[..4].copy_from_slice(&entries[(r >> 24 & 7) as usize].to_le_bytes());
        }
        let bytes = if r & 3 == 0 { 6 } else { (r >> 32) as usize % 512 };
        match first.interface().command(class, command, &data[..bytes]) {
            Some(0) if r & 3 == 0 => stolen += 1,
            Some(0 | 1) => answered += 1,
            _ => odd += 1,
        }
    }
    check!(
        test,
        answered == COMMANDS && stolen == 0 && odd == 0,
        "{answered} of {COMMANDS} commands answered, {stolen} addresses taken, {odd} odd answers"
    );
    afterwards(test, &ports, boot);
}

/// As much as goes, to all, of every length that keeps to the MTU, with the receiver's buffers as
/// they are; and resets of either amid that.
pub fn flood(test: &str, boot: &Boot) {
    let Some(ports) = ports(test, boot) else { return };
    let [first, second] = &ports;
    let mut random = Random::new(SEED + 1);
    let (mut sent, mut resets, mut tries) = (0, 0, 0);
    let done = wait::patiently(|| {
        let r = random.number();
        if sent % 500 == 499 {
            let port = if r & 1 == 0 { first } else { second };
            tries += 1;
            resets += u64::from(port.virtio.reset() && port.start(boot));
        }
        let to = [BROADCAST, second.own, OTHERS[0], RESERVED][(r >> 8 & 3) as usize];
        sent += u64::from(send(first, to, 60 + (r >> 16) as usize % 1_400));
        second.interface().poll();
        let mut frame = [0; FRAME];
        while second.interface().receive(&mut frame).is_some() {}
        sent >= FRAMES
    });
    let given_up = first.is_given_up() || second.is_given_up();
    check!(
        test,
        done && resets == tries && tries > 5 && !given_up,
        "{sent} frames, {resets} of {tries} resets, given up: {given_up}"
    );
    afterwards(test, &ports, boot);
}

const _: () = assert!(HEADER == 12 && SLOTS * PIECES as usize <= 128);
