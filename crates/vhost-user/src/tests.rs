//! Habits of front ends, one by one, and any messages in any order.
use crate::*;
use proptest::prelude::*;

const ALL: Protocol = Protocol::all();

fn session() -> Session {
    let mut session = Session::new(0x1_0000_0240, ALL, 2, 256);
    let bits = ALL.bits().to_le_bytes();
    assert_eq!(send(&mut session, Request::SetProtocolFeatures, &bits, &[]), Ok(Effect::Nothing));
    session
}

fn send(
    session: &mut Session,
    request: Request,
    payload: &[u8],
    handles: &[u8],
) -> Result<Effect<u8>, Error> {
    let header = Header { request: request as u32, need_reply: false, size: payload.len() };
    session.handle(&header, payload, handles.to_vec())
}

fn words32<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words64<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// QEMU's network enables a ring before it sets features, and all say BASE before ADDR.
#[test]
fn a_ring_is_ready_whatever_comes_first() {
    let mut session = session();
    let enable = send(&mut session, Request::SetVringEnable, &words32([1, 1]), &[]);
    assert_eq!(enable, Ok(Effect::Enable(1, true)));
    let features = PROTOCOL_FEATURES | 1 << 32;
    let set = send(&mut session, Request::SetFeatures, &features.to_le_bytes(), &[]);
    assert_eq!(set, Ok(Effect::Features(features)));
    let changed = Ok(Effect::Changed(1));
    assert_eq!(send(&mut session, Request::SetVringBase, &words32([1, 7]), &[]), changed);
    assert_eq!(send(&mut session, Request::SetVringNum, &words32([1, 128]), &[]), changed);
    let kick = send(&mut session, Request::SetVringKick, &words64([1]), &[9]);
    assert_eq!(kick, Ok(Effect::Kick(1, Some(9))));
    assert!(!session.is_ready(1), "nothing says where it lies");
    let address = [words32([1, 0]), words64([0x1000, 0x3000, 0x2000, 0])].concat();
    assert_eq!(send(&mut session, Request::SetVringAddr, &address, &[]), changed);
    assert!(session.is_ready(1));
    let ring = session.ring(1).expect("there are two");
    assert_eq!((ring.size, ring.base), (128, 7));
    assert_eq!(
        send(&mut session, Request::GetVringBase, &words32([1, 0]), &[]),
        Ok(Effect::Stop(1))
    );
    assert!(!session.is_ready(1));
    assert_eq!(session.base_reply(1, 9), words32([1, 9]));
}

/// Without protocol features every ring is enabled.
#[test]
fn old_front_ends_need_not_enable() {
    let mut session = session();
    send(&mut session, Request::SetVringNum, &words32([0, 4]), &[]).expect("it may");
    let address = [words32([0, 0]), words64([0x1000, 0x3000, 0x2000, 0])].concat();
    send(&mut session, Request::SetVringAddr, &address, &[]).expect("it may");
    send(&mut session, Request::SetVringKick, &words64([0x100]), &[]).expect("polled");
    assert!(session.is_ready(0));
}

/// QEMU asks for 57 bytes, Firecracker for 60, SPDK's initiator for 256.
#[test]
fn configuration_is_read_in_all_sizes() {
    let mut session = session();
    for size in [57, 60, 256] {
        let asked = [words32([0, size, 0]), vec![0; size as usize]].concat();
        let read = send(&mut session, Request::GetConfig, &asked, &[]);
        assert_eq!(read, Ok(Effect::ReadConfig { offset: 0, size }));
        assert_eq!(Session::config_reply(0, &vec![0; size as usize]), asked);
    }
    let beyond = words32([200, 57, 0]);
    let read = send(&mut session, Request::GetConfig, &beyond, &[]);
    assert_eq!(read, Err(Error::Config { offset: 200, size: 57 }));
}

#[test]
fn requests_of_features_that_werent_accepted_are_refused() {
    let mut session = Session::new(0, Protocol::CONFIG, 1, 256);
    assert_eq!(send(&mut session, Request::GetQueueNum, &[], &[]), Err(Error::Unknown(17)));
    let bits = Protocol::MQ.bits();
    let set = send(&mut session, Request::SetProtocolFeatures, &bits.to_le_bytes(), &[]);
    assert_eq!(set, Err(Error::Features(bits)));
}

/// A refusal that the protocol has a word for ends nothing, and changes nothing.
#[test]
fn what_is_refused_is_answered_where_there_is_an_answer() {
    let mut session = session();
    send(&mut session, Request::SetVringNum, &words32([0, 128]), &[]).expect("it may");
    let before = format!("{session:?}");
    let mut refused = |request, payload: &[u8], need_reply| {
        send(&mut session, request, payload, &[]).expect_err("it is wrong");
        assert_eq!(format!("{session:?}"), before);
        session.refusal(&Header { request: request as u32, need_reply, size: payload.len() })
    };
    let word = Refusal::Reply(1u64.to_le_bytes().to_vec());
    for (request, payload) in [
        (Request::SetVringNum, words32([0, 1024])),
        (Request::SetVringEnable, words32([2, 1])),
        (Request::SetFeatures, words64([1 << 63])),
        (Request::SetMemTable, words32([1, 0])),
    ] {
        assert_eq!(refused(request, &payload, true), word, "{request:?}");
        assert_eq!(refused(request, &payload, false), Refusal::End, "{request:?}");
    }
    // What has a reply of its own: no bytes of the configuration, or nothing that says no.
    let beyond = [words32([250, 20, 0]), vec![0; 20]].concat();
    assert_eq!(refused(Request::GetConfig, &beyond, false), Refusal::Reply(vec![]));
    assert_eq!(refused(Request::GetVringBase, &words32([2, 0]), true), Refusal::End);
    // QEMU says so whenever a guest writes to `wce`.
    let wce = [words32([32, 1, 0]), vec![1]].concat();
    assert_eq!(refused(Request::SetConfig, &wce, false), Refusal::Silence);
    assert_eq!(refused(Request::SetConfig, &wce, true), word);
    let unknown = Header { request: 999, need_reply: true, size: 0 };
    assert_eq!(session.refusal(&unknown), Refusal::End);
    let early = Session::new(0, ALL, 1, 256);
    let config = Header { request: Request::GetConfig as u32, need_reply: false, size: 0 };
    assert_eq!(early.refusal(&config), Refusal::End, "it isn't negotiated");
}

#[test]
fn a_guest_that_has_moved_is_announced() {
    let mut session = session();
    let word = [2, 0, 0, 0, 0, 7, 0, 0];
    let announced = Ok(Effect::Announce([2, 0, 0, 0, 0, 7]));
    assert_eq!(send(&mut session, Request::SendRarp, &word, &[]), announced);
    assert!(send(&mut session, Request::SendRarp, &word[..6], &[]).is_err());
    let mut without = Session::new(0, ALL - Protocol::RARP, 1, 256);
    assert_eq!(send(&mut without, Request::SendRarp, &word, &[]), Err(Error::Unknown(19)));
}

#[test]
fn an_owner_that_is_reset_disables_its_rings() {
    let mut session = session();
    send(&mut session, Request::SetFeatures, &words64([PROTOCOL_FEATURES]), &[]).expect("it may");
    send(&mut session, Request::SetVringNum, &words32([1, 128]), &[]).expect("it may");
    send(&mut session, Request::SetVringEnable, &words32([1, 1]), &[]).expect("it may");
    let before = *session.ring(1).expect("there are two");
    assert_eq!(send(&mut session, Request::ResetOwner, &[], &[]), Ok(Effect::DisableAll));
    assert_eq!(session.ring(1), Some(&Ring { enabled: false, ..before }));
    assert_eq!(send(&mut session, Request::ResetDevice, &[], &[]), Ok(Effect::Reset));
    assert_eq!(session.ring(1), Some(&Ring::default()));
}

#[test]
fn regions_come_and_go_and_dont_overlap() {
    let mut session = session();
    let low = [0, 0x1000, 0x7000_0000, 0];
    let high = [0x10_0000, 0x2000, 0x7100_0000, 0x1000];
    let table = [words32([2, 0]), words64(high), words64(low)].concat();
    let set = send(&mut session, Request::SetMemTable, &table, &[1, 2]);
    let Ok(Effect::Memory(regions)) = set else { panic!("{set:?}") };
    let handles: Vec<u8> = regions.iter().map(|(_, handle)| *handle).collect();
    assert_eq!(handles, [2, 1], "each region keeps its handle when they are put in order");
    assert_eq!(session.guest_address(0x7100_1fff), Some(0x10_1fff));
    assert_eq!(session.guest_address(0x7100_2000), None);
    let slot = |region| [words64([0]), words64(region)].concat();
    let again = send(&mut session, Request::AddMemReg, &slot([0x800, 0x1000, 0, 0]), &[3]);
    assert_eq!(again, Err(Error::Region(0x800)));
    let gone = send(&mut session, Request::RemMemReg, &slot(low), &[4]);
    assert!(matches!(gone, Ok(Effect::RemoveMemory(region)) if region.guest == 0));
    assert_eq!(send(&mut session, Request::RemMemReg, &slot(low), &[]), Err(Error::NoRegion(0)));
}

/// As QEMU says it when a migration begins, and when it ends.
#[test]
fn what_is_logged_is_said_while_rings_run() {
    let mut session = session();
    let offered = send(&mut session, Request::GetFeatures, &[], &[]);
    let Ok(Effect::Reply(word)) = offered else { panic!("{offered:?}") };
    assert_ne!(u64::from_le_bytes(word.try_into().expect("a word")) & LOG_ALL, 0);
    let base = send(&mut session, Request::SetLogBase, &words64([0x8000, 0]), &[5]);
    assert_eq!(base, Ok(Effect::SetLog(LogArea { len: 0x8000, offset: 0 }, 5)));
    assert!(send(&mut session, Request::SetLogBase, &words64([0x8000, 0]), &[]).is_err());
    let places = |flags| [words32([0, flags]), words64([0x1000, 0x3000, 0x2000, 7])].concat();
    for (flags, log) in [(1, Some(7)), (0, None)] {
        let said = send(&mut session, Request::SetVringAddr, &places(flags), &[]);
        assert_eq!(said, Ok(Effect::Changed(0)));
        let addresses = session.ring(0).and_then(|ring| ring.addresses).expect("they were said");
        assert_eq!(addresses.log, log);
    }
    let short = [words32([0, 1]), words64([0x1000, 0x3000, 0x2000])].concat();
    assert!(send(&mut session, Request::SetVringAddr, &short, &[]).is_err());
    let mut without = Session::new(0, ALL - Protocol::LOG_SHMFD, 1, 256);
    let all = send(&mut without, Request::SetFeatures, &LOG_ALL.to_le_bytes(), &[]);
    assert_eq!(all, Err(Error::Features(LOG_ALL)));
    assert!(send(&mut without, Request::SetLogBase, &words64([1, 0]), &[5]).is_err());
}

#[test]
fn headers() {
    let bytes = |flags, size| -> [u8; 12] {
        words32([24, flags, size]).try_into().expect("it has twelve bytes")
    };
    let header = Header { request: 24, need_reply: true, size: 69 };
    assert_eq!(Header::parse(&bytes(9, 69)), Ok(header));
    assert_eq!(Header::parse(&bytes(2, 0)), Err(Error::Version(2)));
    let long = Error::TooLong { request: 24, size: u32::MAX };
    assert_eq!(Header::parse(&bytes(1, u32::MAX)), Err(long));
    assert_eq!(Header::reply(24, 69), bytes(5, 69));
}

/// Has every descriptor and no records.
struct All;

impl Holder for All {
    fn inflight(&self) -> Option<Inflight> {
        None
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

proptest! {
    /// Any messages: nothing panics, regions stay apart, rings within what was offered; and
    /// what the session says of itself leads another one to the same state.
    #[test]
    fn any_messages(
        messages in prop::collection::vec(
            (0u32..45, prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..80),
             0usize..4),
            0..60,
        ),
    ) {
        let mut session = session();
        for (request, payload, handles) in messages {
            let header = Header { request, need_reply: true, size: payload.len() };
            let before = format!("{session:?}");
            if session.handle(&header, &payload, vec![0u8; handles]).is_err() {
                prop_assert_eq!(format!("{session:?}"), before, "what is refused changes nothing");
            }
            for pair in session.regions().windows(2) {
                prop_assert!(pair[0].guest + pair[0].len <= pair[1].guest);
            }
            for index in 0..2 {
                prop_assert!(session.ring(index).is_some_and(|ring| ring.size <= 256));
            }
            prop_assert!(session.ring(2).is_none());
            let mut other = Session::new(0x1_0000_0240, ALL, 2, 256);
            for said in session.said(&All) {
                let handles = vec![0; said.handles.len()];
                let done = send(&mut other, said.request, &said.payload, &handles);
                prop_assert!(done.is_ok(), "{:?}: {:?}", said, done);
            }
            prop_assert_eq!(format!("{other:?}"), format!("{session:?}"));
        }
    }
}
