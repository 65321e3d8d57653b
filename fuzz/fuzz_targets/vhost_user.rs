//! What a front end says over vhost-user: any messages in any order, with any descriptors.
//!
//! The model is what was accepted: features, rings, regions. An effect names nothing else, a reply
//! has the length that its request's has, and no descriptor stays in the session. At the end, what
//! the session says of itself leads a new one to the same state.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::rc::Rc;
use vhost_user::{
    Effect, HEADER_BYTES, Handle, Header, Holder, Inflight, LOG_ALL, LogArea, MAX_HANDLES,
    MAX_PAYLOAD, MAX_REGIONS, PROTOCOL_FEATURES, Protocol, Region, Request, Session,
};

#[derive(Arbitrary, Debug)]
struct Input {
    features: u64,
    protocol: u64,
    rings: u8,
    max_ring: u16,
    messages: Vec<Message>,
}

#[derive(Arbitrary, Debug)]
struct Message {
    flags: u8,
    handles: u8,
    what: What,
}

/// A message that fits its request, more or less, or any bytes.
#[derive(Arbitrary, Debug)]
enum What {
    Raw { request: u8, size: u16, payload: Vec<u8> },
    Ask { request: u8 },
    Features { features: u64, protocol: bool },
    Ring { request: u8, ring: u8, word: u32 },
    Addresses { ring: u8, flags: u8, places: [u64; 4] },
    Log { base: bool, words: [u64; 2] },
    Descriptor { request: u8, ring: u8, none: bool },
    Table { said: u8, regions: Vec<Area> },
    Slot { remove: bool, area: Area },
    Config { write: bool, offset: u16, size: u16, content: Vec<u8> },
    Records { hand: bool, padded: bool, words: [u64; 2], rings: u16, size: u16 },
}

/// A region, most of them near others.
#[derive(Arbitrary, Clone, Debug)]
struct Area {
    guest: u8,
    len: u8,
    user: u8,
    exact: Option<[u64; 4]>,
}

impl Area {
    fn words(&self) -> [u64; 4] {
        let page = |number: u8| u64::from(number) << 12;
        self.exact.unwrap_or([page(self.guest), page(self.len), page(self.user), 0])
    }
}

fn words32(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn words64(words: impl IntoIterator<Item = u64>) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// One of these requests.
fn pick(requests: &[Request], which: u8) -> u32 {
    requests[usize::from(which) % requests.len()] as u32
}

impl What {
    /// The request, the size that the header says, and the payload.
    fn bytes(self) -> (u32, u32, Vec<u8>) {
        use Request::*;
        let (request, payload) = match self {
            What::Raw { request, size, payload } => return (request.into(), size.into(), payload),
            What::Ask { request } => {
                let asked = [
                    GetFeatures,
                    SetOwner,
                    ResetOwner,
                    GetProtocolFeatures,
                    GetQueueNum,
                    ResetDevice,
                    GetMaxMemSlots,
                ];
                (pick(&asked, request), Vec::new())
            }
            What::Features { features, protocol } => {
                let request = if protocol { SetProtocolFeatures } else { SetFeatures };
                (request as u32, words64([features]))
            }
            What::Ring { request, ring, word } => {
                let requests = [SetVringNum, SetVringBase, GetVringBase, SetVringEnable];
                (pick(&requests, request), words32([ring.into(), word]))
            }
            What::Addresses { ring, flags, places } => {
                let payload = [words32([ring.into(), flags.into()]), words64(places)].concat();
                (SetVringAddr as u32, payload)
            }
            What::Log { base, words } => {
                (if base { SetLogBase } else { SetLogFd } as u32, words64(words))
            }
            What::Descriptor { request, ring, none } => {
                let word = u64::from(ring) | u64::from(none) << 8;
                (pick(&[SetVringKick, SetVringCall, SetVringErr], request), words64([word]))
            }
            What::Table { said, regions } => {
                let words = regions.iter().flat_map(Area::words);
                (SetMemTable as u32, [words32([said.into(), 0]), words64(words)].concat())
            }
            What::Slot { remove, area } => {
                let request = if remove { RemMemReg } else { AddMemReg };
                (request as u32, [words64([0]), words64(area.words())].concat())
            }
            What::Config { write, offset, size, content } => {
                let request = if write { SetConfig } else { GetConfig };
                let head = words32([offset.into(), size.into(), 0]);
                (request as u32, [head, content].concat())
            }
            What::Records { hand, padded, words, rings, size } => {
                let request = if hand { SetInflightFd } else { GetInflightFd };
                let last = [rings.to_le_bytes(), size.to_le_bytes()].concat();
                let padding = vec![0; if padded { 4 } else { 0 }];
                (request as u32, [words64(words), last, padding].concat())
            }
        };
        (request, payload.len() as u32, payload)
    }
}

/// What was accepted.
struct Model {
    session: Session,
    offered: u64,
    protocol_offered: Protocol,
    protocol: Protocol,
    rings: u16,
    max_ring: u16,
    regions: Vec<Region>,
}

impl Model {
    fn message(&mut self, Message { flags, handles, what }: Message) {
        let (request, size, payload) = what.bytes();
        let head: [u8; HEADER_BYTES] =
            words32([request, flags.into(), size]).try_into().expect("three words");
        let Ok(header) = Header::parse(&head) else {
            assert!(flags & 3 != 1 || size as usize > MAX_PAYLOAD);
            return;
        };
        assert!(flags & 3 == 1 && header.size == size as usize && header.size <= MAX_PAYLOAD);
        assert_eq!(header.need_reply, flags & 8 != 0);
        // Who has the socket reads as many bytes as the header says; a test may say less or more.
        let owner = Rc::new(());
        let given = usize::from(handles) % (MAX_HANDLES + 2);
        let given = std::iter::repeat_with(|| Rc::clone(&owner)).take(given).collect();
        let effect = self.session.handle(&header, &payload, given);
        let kept = Rc::strong_count(&owner) - 1;
        assert_eq!(kept, effect.as_ref().map_or(0, held), "a descriptor stays in the session");
        if let Ok(effect) = effect {
            self.effect(&header, &payload, effect);
        }
        self.bounds();
        let asked = header.need_reply && self.protocol.contains(Protocol::REPLY_ACK);
        for well in [true, false] {
            let word = self.session.acknowledgement(&header, well);
            assert_eq!(word, asked.then(|| u64::from(!well).to_le_bytes()));
        }
    }

    /// The effect is one of this request, with what was negotiated, on what there is.
    fn effect(&mut self, header: &Header, payload: &[u8], effect: Effect<Rc<()>>) {
        let request = Request::of(header.request).expect("another isn't taken");
        let there = |ring: u16| assert!(ring < self.rings);
        let needs = |feature| assert!(self.protocol.contains(feature));
        match effect {
            Effect::Nothing if request == Request::SetProtocolFeatures => {
                let bits = u64::from_le_bytes(*payload.first_chunk().expect("it has a word"));
                self.protocol = Protocol::from_bits(bits).expect("no other was offered");
                assert!(self.protocol_offered.contains(self.protocol));
            }
            Effect::Nothing => assert_eq!(request, Request::SetOwner),
            Effect::Reply(reply) => {
                let word = u64::from_le_bytes(reply.try_into().expect("a word"));
                let expected = match request {
                    Request::GetFeatures => self.offered,
                    Request::GetProtocolFeatures => self.protocol_offered.bits(),
                    Request::GetQueueNum => self.rings.into(),
                    Request::GetMaxMemSlots => MAX_REGIONS as u64,
                    other => panic!("{other:?} has no such reply"),
                };
                assert_eq!(word, expected);
            }
            Effect::Features(features) => {
                assert!(features & !self.offered == 0 && features == self.session.features());
            }
            Effect::Memory(regions) => {
                self.regions = regions.into_iter().map(|(region, _)| region).collect();
            }
            Effect::AddMemory(region, _) => {
                needs(Protocol::CONFIGURE_MEM_SLOTS);
                self.regions.push(region);
                self.regions.sort_by_key(|region| region.guest);
            }
            Effect::RemoveMemory(region) => {
                needs(Protocol::CONFIGURE_MEM_SLOTS);
                let before = self.regions.len();
                self.regions.retain(|other| *other != region);
                assert_eq!(self.regions.len() + 1, before, "one that was there");
            }
            Effect::Kick(ring, _) => {
                there(ring);
                assert!(self.session.ring(ring).is_some_and(|ring| ring.started));
            }
            Effect::Call(ring, _) | Effect::Error(ring, _) | Effect::Changed(ring) => there(ring),
            Effect::Enable(ring, enabled) => {
                there(ring);
                assert_eq!(self.session.ring(ring).map(|ring| ring.enabled), Some(enabled));
            }
            Effect::Stop(ring) => {
                there(ring);
                assert!(!self.session.is_ready(ring));
                let reply = self.session.base_reply(ring, 0xabcd);
                assert_eq!(reply, words32([ring.into(), 0xabcd]));
                assert_eq!(self.session.ring(ring).map(|ring| ring.base), Some(0xabcd));
            }
            Effect::ReadConfig { offset, size } => {
                needs(Protocol::CONFIG);
                assert!(size > 0 && offset.checked_add(size).is_some_and(|end| end <= 256));
                let reply = Session::config_reply(offset, &vec![7; size as usize]);
                assert_eq!(&reply[..8], words32([offset, size]));
                assert!(reply.len() == 12 + size as usize && reply.len() <= MAX_PAYLOAD);
            }
            Effect::MakeInflight { rings, size } => {
                needs(Protocol::INFLIGHT_SHMFD);
                let made = Inflight { len: 4096, offset: 0, rings, size };
                let reply = Session::inflight_reply(header, made);
                assert_eq!(reply.len(), header.size.clamp(20, 24));
            }
            Effect::SetInflight(..) => needs(Protocol::INFLIGHT_SHMFD),
            Effect::SetLog(area, _) => {
                needs(Protocol::LOG_SHMFD);
                assert_eq!(payload[..16], words64([area.len, area.offset]));
            }
            Effect::LogCall(_) => assert_eq!(request, Request::SetLogFd),
            Effect::Announce(mac) => {
                needs(Protocol::RARP);
                assert_eq!(payload[..6], mac);
            }
            Effect::DisableAll => {
                let mut rings = (0..self.rings).filter_map(|ring| self.session.ring(ring));
                assert!(rings.all(|ring| !ring.enabled));
            }
            Effect::Reset => {
                let mut rings = (0..self.rings).map(|ring| self.session.ring(ring));
                assert!(rings.all(|ring| ring == Some(&vhost_user::Ring::default())));
            }
        }
    }

    /// What holds whatever came, a refused message too.
    fn bounds(&self) {
        assert_eq!(self.session.regions(), self.regions);
        assert!(self.regions.len() <= MAX_REGIONS);
        let end = |start: u64, len: u64| start.checked_add(len).expect("no region wraps");
        for (at, region) in self.regions.iter().enumerate() {
            let Region { guest, len, user, offset } = *region;
            assert!(len > 0);
            end(offset, len);
            for other in &self.regions[at + 1..] {
                assert!(end(guest, len) <= other.guest, "in order, and apart");
                assert!(end(user, len) <= other.user || end(other.user, other.len) <= user);
            }
            assert_eq!(self.session.guest_address(user), Some(guest));
            assert_eq!(self.session.guest_address(user + (len - 1)), Some(guest + (len - 1)));
            let behind = self.session.guest_address(user + len);
            let next = self.regions.iter().find(|other| other.user == user + len);
            assert_eq!(behind, next.map(|other| other.guest));
        }
        let accepted = self.session.features() & PROTOCOL_FEATURES != 0;
        for index in 0..self.rings {
            let ring = self.session.ring(index).expect("it was offered");
            assert!(ring.size <= self.max_ring);
            let said = ring.size > 0 && ring.addresses.is_some() && ring.started;
            let ready = said && (ring.enabled || !accepted);
            assert_eq!(self.session.is_ready(index), ready);
        }
        assert!(self.session.ring(self.rings).is_none() && !self.session.is_ready(self.rings));
    }
}

/// Has every descriptor, records and a log.
struct All;

impl Holder for All {
    fn inflight(&self) -> Option<Inflight> {
        Some(Inflight { len: 4096, offset: 0, rings: 1, size: 8 })
    }

    fn log(&self) -> Option<LogArea> {
        Some(LogArea { len: 1, offset: 0 })
    }

    fn has(&self, _: Handle) -> bool {
        true
    }

    fn base(&self, _: u16) -> Option<u32> {
        None
    }
}

/// Descriptors that an effect has.
fn held(effect: &Effect<Rc<()>>) -> usize {
    match effect {
        Effect::Memory(regions) => regions.len(),
        Effect::AddMemory(..)
        | Effect::SetInflight(..)
        | Effect::SetLog(..)
        | Effect::LogCall(_) => 1,
        Effect::Kick(_, handle) | Effect::Call(_, handle) | Effect::Error(_, handle) => {
            handle.iter().count()
        }
        _ => 0,
    }
}

fuzz_target!(|input: Input| {
    let protocol = Protocol::from_bits_truncate(input.protocol);
    let rings = u16::from(input.rings) % 5;
    let log = if protocol.contains(Protocol::LOG_SHMFD) { LOG_ALL } else { 0 };
    let mut model = Model {
        session: Session::new(input.features, protocol, rings, input.max_ring),
        offered: input.features | PROTOCOL_FEATURES | log,
        protocol_offered: protocol,
        protocol: Protocol::empty(),
        rings,
        max_ring: input.max_ring,
        regions: Vec::new(),
    };
    for message in input.messages {
        model.message(message);
    }
    // What it says of itself leads another session to the same state.
    let mut other = Session::new(input.features, protocol, rings, input.max_ring);
    for said in model.session.said(&All) {
        let header = Header { request: said.request as u32, need_reply: false, size: 0 };
        let handles = vec![Rc::new(()); said.handles.len()];
        other.handle(&header, &said.payload, handles).expect("it was accepted before");
    }
    assert_eq!(format!("{other:?}"), format!("{:?}", model.session));
});
