//! The handshake and replies, cut anywhere; and nonsense.
use crate::*;
use proptest::prelude::*;

fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let head = [0x0003_e889_0455_65a9u64.to_be_bytes().as_slice(), &option.to_be_bytes()].concat();
    [&head[..], &kind.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

fn server(structured: bool) -> Vec<u8> {
    let export = [&[0, 0][..], &(1u64 << 30).to_be_bytes(), &0x16du16.to_be_bytes()].concat();
    let sizes = [&[0, 3][..], &512u32.to_be_bytes(), &[0, 0, 16, 0, 2, 0, 0, 0]].concat();
    [
        b"NBDMAGICIHAVEOPT\0\x03".to_vec(),
        option_reply(8, if structured { 1 } else { 1 << 31 | 1 }, &[]),
        option_reply(7, 3, &export),
        option_reply(7, 3, &sizes),
        option_reply(7, 1, &[]),
    ]
    .concat()
}

/// Gives bytes in these pieces: what is sent, and the export.
fn shake(bytes: &[u8], cuts: &[usize]) -> Result<(Vec<u8>, Option<Export>), Error> {
    let (mut handshake, mut sent) = (Handshake::new("disk", false), Vec::new());
    let (mut there, mut from) = (0, 0);
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        there = (there + cut).min(bytes.len());
        loop {
            let (count, progress) = handshake.hear(&bytes[from..there], &mut sent)?;
            from += count;
            if let Progress::Done(export) = progress {
                assert_eq!(from, bytes.len());
                return Ok((sent, Some(export)));
            }
            if count == 0 {
                break;
            }
        }
    }
    Ok((sent, None))
}

/// A read of 12 bytes at 1000, cookie 3; a write, cookie 4.
fn asked(cookie: u64) -> Option<Asked> {
    match cookie {
        3 => Some(Asked { reads: 12, offset: 1000 }),
        4 => Some(Asked { reads: 0, offset: 0 }),
        _ => None,
    }
}

/// What comes of bytes in these pieces: the read's data, and the rest as text.
fn replies(
    structured: bool,
    bytes: &[u8],
    cuts: &[usize],
) -> Result<(Vec<u8>, Vec<String>), Error> {
    let mut replies = Replies::new(structured);
    let (mut data, mut events) = (vec![0xee; 12], Vec::new());
    let (mut there, mut from) = (0, 0);
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        there = (there + cut).min(bytes.len());
        loop {
            let (count, event) = replies.hear(&bytes[from..there], asked)?;
            from += count;
            match event {
                Event::Nothing => break,
                Event::Data { at, bytes, .. } => {
                    data[at as usize..][..bytes.len()].copy_from_slice(bytes)
                }
                Event::Hole { at, len, .. } => data[at as usize..][..len as usize].fill(0),
                other => events.push(format!("{other:?}")),
            }
        }
    }
    Ok((data, events))
}

fn chunk(flags: u16, kind: u16, cookie: u64, body: &[u8]) -> Vec<u8> {
    let head = [&0x668e_33efu32.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes()];
    [&head.concat()[..], &cookie.to_be_bytes(), &(body.len() as u32).to_be_bytes(), body].concat()
}

fn simple(error: u32, cookie: u64) -> Vec<u8> {
    [&0x6744_6698u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

proptest! {
    #[test]
    fn a_handshake_may_be_cut_anywhere(structured in any::<bool>(), cuts in prop::collection::vec(0..40usize, 0..9)) {
        let (sent, export) = shake(&server(structured), &cuts).expect("it is one");
        let export = export.expect("it is whole");
        prop_assert_eq!(export.size, 1 << 30);
        prop_assert_eq!(export.minimum_block, 512);
        prop_assert_eq!(export.structured, structured);
        prop_assert!(export.flags.contains(ExportFlags::MULTI_CONN | ExportFlags::FUA));
        let name: &[u8] = b"\0\0\0\x04disk\0\x01\0\x03";
        prop_assert!(sent.ends_with(name));
    }

    #[test]
    fn replies_may_be_cut_anywhere(cuts in prop::collection::vec(0..40usize, 0..9)) {
        let end = |cookie| format!("{:?}", Event::End { cookie });
        let failed = |cookie, error| format!("{:?}", Event::Failed { cookie, error });
        let bytes = [simple(0, 4), simple(0, 3), b"abcdefghijkl".to_vec(), simple(5, 3)].concat();
        let (data, events) = replies(false, &bytes, &cuts).expect("they are");
        prop_assert_eq!(data, b"abcdefghijkl");
        prop_assert_eq!(events, [end(4), end(3), failed(3, 5), end(3)]);

        let at = |offset: u64, rest: &[u8]| [&offset.to_be_bytes()[..], rest].concat();
        let bytes = [
            chunk(0, 1, 3, &at(1008, b"ijkl")),
            simple(0, 4),
            chunk(0, 2, 3, &at(1004, &4u32.to_be_bytes())),
            chunk(1, 1, 3, &at(1000, b"abcd")),
            chunk(0, 1 << 15 | 1, 3, &[0, 0, 0, 28, 0, 2, b'n', b'o']),
            chunk(1, 0, 3, &[]),
        ]
        .concat();
        let (data, events) = replies(true, &bytes, &cuts).expect("they are");
        prop_assert_eq!(data, b"abcd\0\0\0\0ijkl");
        prop_assert_eq!(events, [end(4), end(3), failed(3, 28), end(3)]);
    }

    #[test]
    fn nonsense_is_survived(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        kind in 0..4u16,
        offset in 990..1020u64,
        cookie in 2..6u64,
        structured in any::<bool>(),
    ) {
        let _ = shake(&[&server(true)[..38], &bytes].concat(), &[7, 30]);
        let _ = shake(&bytes, &[]);
        let (mut handshake, mut sent) = (Handshake::new("disk", true), Vec::new());
        let all = [&server(true)[..18], &bytes].concat();
        let _ = handshake.hear(&all, &mut sent);
        let _ = handshake.hear(&all[18..], &mut sent);
        let _ = replies(structured, &bytes, &[3]);
        let body = [&offset.to_be_bytes()[..], &bytes].concat();
        let _ = replies(true, &chunk(1, kind, cookie, &body), &[9]);
    }
}

#[test]
fn data_that_wasnt_asked_for_is_refused() {
    let data = [&1005u64.to_be_bytes()[..], b"abcdefgh"].concat();
    assert_eq!(replies(true, &chunk(1, 1, 3, &data), &[]), Err(Error::Data));
    assert_eq!(replies(true, &chunk(1, 1, 4, &data), &[]), Err(Error::Data));
    assert_eq!(replies(true, &chunk(1, 0, 9, &[]), &[]), Err(Error::Cookie));
    assert_eq!(replies(false, &chunk(1, 0, 3, &[]), &[]), Err(Error::Reply));
}

#[test]
fn refusals_are_said() {
    let refused = [
        b"NBDMAGICIHAVEOPT\0\x03".to_vec(),
        option_reply(8, 1, &[]),
        option_reply(7, 1 << 31 | 6, b"no such thing"),
    ];
    let error = shake(&refused.concat(), &[]).expect_err("there is none");
    assert_eq!(error.to_string(), "the server refuses the export: no such thing");
    assert_eq!(shake(&[b'x'; 30], &[]), Err(Error::Magic));
}

/// What comes before the server's word for it is in the clear, what is to be sent after isn't.
#[test]
fn tls_begins_or_nothing_does() {
    let greeting = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
    let hear = |bytes: &[u8]| {
        let (mut handshake, mut sent) = (Handshake::new("disk", true), Vec::new());
        assert_eq!(handshake.hear(&greeting, &mut sent), Ok((18, Progress::Shaking)));
        assert_eq!(sent, b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0");
        sent.clear();
        let said = handshake.hear(bytes, &mut sent);
        (said, sent)
    };
    let (said, sent) = hear(&option_reply(5, 1, &[]));
    assert_eq!(said, Ok((20, Progress::StartTls)));
    assert_eq!(sent, b"IHAVEOPT\0\0\0\x08\0\0\0\0");
    let (said, sent) = hear(&option_reply(5, 1 << 31 | 1, &[]));
    assert_eq!(said.unwrap_err().to_string(), "the server has no TLS: it doesn't know of it");
    assert!(sent.is_empty());
    assert_eq!(hear(&option_reply(8, 1, &[])).0, Err(Error::Reply));
    assert_eq!(
        shake(&[greeting, option_reply(8, 1 << 31 | 5, &[])].concat(), &[]),
        Err(Error::Tls)
    );
}

#[test]
fn uris_are_read() {
    let host = |name: &str, port, export: &str| {
        Ok(Uri { place: Place::Host(name.into(), port), export: export.into(), tls: false })
    };
    assert_eq!(Uri::parse("nbd://box"), host("box", 10809, ""));
    assert_eq!(Uri::parse("nbd://box:99/a%20b"), host("box", 99, "a b"));
    assert_eq!(Uri::parse("nbd://[::1]:99/x"), host("::1", 99, "x"));
    let unix = Uri { place: Place::Unix("/run/s".into()), export: "x".into(), tls: false };
    assert_eq!(Uri::parse("nbd+unix:///x?socket=/run/s"), Ok(unix.clone()));
    assert_eq!(Uri::parse("nbds+unix:///x?socket=/run/s"), Ok(Uri { tls: true, ..unix }));
    assert_eq!(
        Uri::parse("nbds://box/x"),
        host("box", 10809, "x").map(|uri: Uri| Uri { tls: true, ..uri })
    );
    let wrong = [
        ("http://x", BadUri::Scheme),
        ("nbdss://x", BadUri::Scheme),
        ("nbd:x", BadUri::Scheme),
        ("nbd:///x", BadUri::Host),
        ("nbd://x:0", BadUri::Port),
        ("nbd://x/%g0", BadUri::Percent),
        ("nbd+unix:///x", BadUri::Socket),
    ];
    for (text, why) in wrong {
        assert_eq!(Uri::parse(text), Err(why), "{text}");
    }
}
