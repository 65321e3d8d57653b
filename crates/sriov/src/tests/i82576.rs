//! The controller's driver against a model of its registers: what the mailboxes, the switch
//! and the reset do, as far as the driver uses them, and guests that write what they like.

mod mailboxes;
mod throttle;

use crate::i82576::{Controller, Error, FUNCTIONS, Mac, Registers};
use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

const CTRL: u32 = 0x0000;
const CTRL_EXT: u32 = 0x0018;
const MDIC: u32 = 0x0020;
const RCTL: u32 = 0x0100;
const MAILBOX: u32 = 0x0800;
const P2V: u32 = 0x0C00;
const MBVFICR: u32 = 0x0C80;
const VFLRE: u32 = 0x0C88;
const VFRE: u32 = 0x0C8C;
const VFTE: u32 = 0x0C90;
const DTXSWC: u32 = 0x3500;
const MTA: u32 = 0x5200;
const RA: u32 = 0x5400;
const VMOLR: u32 = 0x5AD0;

const OWN: Mac = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
const READY: u32 = 1 << 28;
const GRANTED: u32 = 1 << 31;
const REFUSED: u32 = 1 << 30;
const CLEAR: u32 = 1 << 29;
/// The host holds the mailbox.
const PFU: u32 = 1 << 3;

/// Registers that are memory, but for those that aren't.
#[derive(Default)]
struct Model {
    memory: BTreeMap<u32, u32>,
    /// Functions whose guests hold their mailboxes.
    held: u32,
    /// What a function's guest was told by the mailbox's state.
    told: [u32; FUNCTIONS],
    dead: bool,
    mute: bool,
    accesses: u64,
    /// What was written, in order.
    written: Vec<(u32, u32)>,
    /// A function whose guest resets it before the host's so manieth access from here on, and then
    /// writes its message as soon as it gets the mailbox.
    resets: Option<(u32, u64)>,
    /// That message isn't written yet.
    unsaid: Option<u32>,
}

impl Model {
    fn next_access(&mut self) {
        self.accesses += 1;
        match &mut self.resets {
            Some((vf, 0)) => {
                let bit = 1 << *vf;
                *self.memory.entry(VFLRE).or_default() |= bit;
                *self.memory.entry(VFRE).or_default() &= !bit;
                *self.memory.entry(VFTE).or_default() &= !bit;
                (self.unsaid, self.resets) = (Some(*vf), None);
            }
            Some((_, left)) => *left -= 1,
            None => {}
        }
        if let Some(vf) = self.unsaid
            && *self.memory.get(&(P2V + 4 * vf)).unwrap_or(&0) & PFU == 0
        {
            self.unsaid = None;
            self.memory.insert(MAILBOX + 64 * vf, 1);
            *self.memory.entry(MBVFICR).or_default() |= 1 << vf;
        }
    }
}

#[derive(Clone, Default)]
struct Handle(Rc<RefCell<Model>>);

impl Registers for Handle {
    fn read(&mut self, offset: u32) -> u32 {
        assert!(offset.is_multiple_of(4) && offset < 128 << 10, "{offset:#x}");
        let mut model = self.0.borrow_mut();
        model.next_access();
        *model.memory.get(&offset).unwrap_or(&0)
    }

    fn write(&mut self, offset: u32, value: u32) {
        assert!(offset.is_multiple_of(4) && offset < 128 << 10, "{offset:#x}");
        let mut model = self.0.borrow_mut();
        model.next_access();
        model.written.push((offset, value));
        let old = *model.memory.get(&offset).unwrap_or(&0);
        let new = match offset {
            CTRL if !model.dead => value & !(1 << 26),
            MDIC if !model.mute => value | READY,
            MBVFICR | VFLRE => old & !value,
            P2V..0xC20 => {
                let vf = (offset - P2V) / 4;
                model.told[vf as usize] |= value & 3;
                if model.held >> vf & 1 != 0 { 0 } else { value & 8 }
            }
            _ => value,
        };
        model.memory.insert(offset, new);
    }
}

impl Handle {
    fn new() -> Self {
        let handle = Handle::default();
        handle.set(RA, 0x1200_5452);
        handle.set(RA + 4, 0x8000_5634);
        handle
    }

    fn take_written(&self) -> Vec<(u32, u32)> {
        core::mem::take(&mut self.0.borrow_mut().written)
    }

    fn get(&self, offset: u32) -> u32 {
        *self.0.borrow().memory.get(&offset).unwrap_or(&0)
    }

    fn set(&self, offset: u32, value: u32) {
        self.0.borrow_mut().memory.insert(offset, value);
    }

    /// A guest writes a message and says so.
    fn post(&self, vf: u32, words: &[u32]) {
        for (i, word) in words.iter().enumerate().take(16) {
            self.set(MAILBOX + 64 * vf + 4 * i as u32, *word);
        }
        self.set(MBVFICR, self.get(MBVFICR) | 1 << vf);
    }

    fn answer(&self, vf: u32) -> [u32; 3] {
        [0, 1, 2].map(|i| self.get(MAILBOX + 64 * vf + 4 * i))
    }

    /// What its driver does after a reset, and what it is told.
    fn reset(&self, vf: u32, controller: &mut Controller<Handle>) -> [u32; 3] {
        self.set(VFLRE, self.get(VFLRE) | 1 << vf);
        self.set(VFRE, self.get(VFRE) & !(1 << vf));
        self.set(VFTE, self.get(VFTE) & !(1 << vf));
        self.post(vf, &[1]);
        controller.serve();
        self.answer(vf)
    }

    fn ask(&self, vf: u32, words: &[u32], controller: &mut Controller<Handle>) -> u32 {
        self.post(vf, words);
        controller.serve();
        self.answer(vf)[0]
    }
}

fn mac(vf: u8) -> Mac {
    [2, 0, 0, 0, 0xAB, vf]
}

fn words(mac: Mac) -> [u32; 2] {
    let [a, b, c, d, e, f] = mac;
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0])]
}

fn started(functions: u8) -> (Handle, Controller<Handle>) {
    let handle = Handle::new();
    let mut controller = Controller::start(handle.clone(), |_| {}).unwrap();
    assert_eq!(controller.mac(), OWN);
    controller.share(&(0..functions).map(mac).collect::<Vec<_>>());
    (handle, controller)
}

#[test]
fn functions_get_frames_for_their_address_and_can_send_under_no_other() {
    let (handle, _) = started(2);
    for vf in 0..2 {
        let [low, high] = words(mac(vf));
        let entry = RA + 8 * (u32::from(vf) + 1);
        assert_eq!(handle.get(entry), low);
        assert_eq!(handle.get(entry + 4), high | 1 << (18 + vf) | 1 << 31);
        assert_eq!(handle.get(VMOLR + 4 * u32::from(vf)), 0xC900_0000);
    }
    assert_eq!(handle.get(RA + 8 * 3 + 4), 0);
    assert_eq!(handle.get(VMOLR + 8), 0x8000_0000);
    assert_eq!(handle.get(DTXSWC), 0x8000_FFFF);
    assert_eq!(handle.get(RCTL) & 2, 2);
    // Nobody sends or receives before its guest has reset it; guests may begin.
    assert_eq!((handle.get(VFRE), handle.get(VFTE)), (0, 0));
    assert_ne!(handle.get(CTRL_EXT) & 1 << 14, 0);
}

/// Register by register, as the datasheet's chapter 8 has them; here they are numbers once more.
#[test]
fn it_is_set_up_as_the_datasheet_says() {
    let handle = Handle::new();
    // Speed and duplex forced, and a bit that isn't ours; link-status changes and another.
    handle.set(CTRL, 0x1808);
    handle.set(CTRL_EXT, 0x1004_0000);
    let mut waited = 0;
    let mut controller = Controller::start(handle.clone(), |us| waited += us).unwrap();
    assert!(waited >= 1000, "4.2.1.6.1");
    let started = [
        (0x150C, u32::MAX),
        (0x1528, u32::MAX),
        (0x0100, 0),
        (0x0400, 0x8),
        (0x0000, 0x0400_1808),
        (0x150C, u32::MAX),
        (0x0000, 0x0000_0049),
        (0x0020, 0x0420_1340),
    ];
    assert_eq!(handle.take_written(), started);

    controller.share(&[mac(0), mac(1)]);
    let mut shared = Vec::new();
    for i in 0..128 {
        shared.extend([0x5200, 0xA000, 0x5600].map(|filter| (filter + 4 * i, 0)));
    }
    shared.extend((0..32).map(|i| (0x5D00 + 4 * i, 0)));
    let addresses = (0x5408..0x5480).step_by(8).chain((0x54E0..0x5520).step_by(8));
    shared.extend(addresses.flat_map(|low| [(low + 4, 0), (low, 0)]));
    shared.extend([
        (0x5408, 0x0000_0002),
        (0x540C, 0x8004_00AB),
        (0x5410, 0x0000_0002),
        (0x5414, 0x8008_01AB),
    ]);
    for pool in 0..8 {
        let settings = if pool < 2 { 0xC900_0000 } else { 0x8000_0000 };
        shared.extend([(0x5AD0 + 4 * pool, settings), (0x3700 + 4 * pool, 0)]);
    }
    shared.extend([
        (0x0C8C, 0),
        (0x0C90, 0),
        (0x2408, 0xFFFF),
        (0x5AF0, 0xC000_0000),
        (0x581C, 0x6000_0000),
        (0x5818, 3),
        (0x3500, 0x8000_FFFF),
        (0x1514, 0xC000_0011),
        (0x0400, 0x0100_00FA),
        (0x5004, 0x2600),
        (0x0100, 0x0404_8022),
        (0x0018, 0x1004_4000),
    ]);
    assert_eq!(handle.take_written(), shared);

    // A reset by its guest, and a message; the mailbox is taken, read, answered, and given back.
    handle.set(0x0C88, 2);
    handle.post(1, &[1]);
    controller.serve();
    let served = [
        (0x0C88, 2),
        (0x0C8C, 0),
        (0x0C90, 0),
        (0x0C80, 2),
        (0x0C04, 8),
        (0x5AD4, 0xC900_0000),
        (0x0C8C, 2),
        (0x0C90, 2),
        (0x0840, 0x8000_0001),
        (0x0844, 0x0000_0002),
        (0x0848, 0x0000_01AB),
        (0x0C04, 3),
    ];
    assert_eq!(handle.take_written(), served);
}

/// Bits that its EEPROM has set already are set afterwards, too.
#[test]
fn what_is_set_already_stays_set() {
    let handle = Handle::new();
    handle.set(CTRL, 0x41);
    handle.set(CTRL_EXT, 1 << 14);
    let mut controller = Controller::start(handle.clone(), |_| {}).unwrap();
    assert_eq!(handle.get(CTRL), 0x41);
    controller.share(&[mac(0)]);
    assert_eq!(handle.get(CTRL_EXT), 1 << 14);
}

#[test]
fn more_functions_than_pools_are_not_there() {
    let (handle, mut controller) = started(9);
    for vf in 0..8 {
        handle.reset(vf, &mut controller);
    }
    assert_eq!(handle.get(VFRE), 0xFF);
}

#[test]
fn a_dead_controller_is_given_up() {
    let start = |break_it: fn(&mut Model)| {
        let handle = Handle::new();
        break_it(&mut handle.0.borrow_mut());
        Controller::start(handle, |_| {}).map(|_| ()).unwrap_err()
    };
    assert_eq!(start(|m| m.dead = true), Error::Reset);
    assert_eq!(start(|m| m.mute = true), Error::Phy);
}
