//! Servers on this machine's loopback address, which guests reach as 10.0.2.2: one sends back what
//! it gets, one tells how often it has been asked. They serve any number of connections, for as
//! long as this program runs.

use anyhow::{Context, Result};
use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
};

/// Starts one that sends back what it gets until the other side has sent its last byte; gives the
/// port.
pub fn send_back() -> Result<u16> {
    // A connection that breaks is its guest's to complain of.
    serve(|stream| drop(thread::spawn(move || copy_back(stream))))
}

/// Starts one that tells how often it has been asked before; gives the port.
pub fn count() -> Result<u16> {
    let mut asked = 0u32;
    serve(move |mut stream| {
        // As above.
        let _ = writeln!(stream, "{asked}");
        asked += 1;
    })
}

fn serve(mut each: impl FnMut(TcpStream) + Send + 'static) -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .context("no port can be opened on 127.0.0.1")?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || listener.incoming().flatten().for_each(&mut each));
    Ok(port)
}

fn copy_back(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 1 << 16];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            n => stream.write_all(&buffer[..n])?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Shutdown;

    #[test]
    fn each_connection_gets_its_own_bytes_back() {
        let port = send_back().unwrap();
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let (mut one, mut other) = (connect(), connect());
        other.write_all(b"other").unwrap();
        one.write_all(b"one").unwrap();
        for (stream, sent) in [(&mut one, "one"), (&mut other, "other")] {
            stream.shutdown(Shutdown::Write).unwrap();
            let mut back = String::new();
            stream.read_to_string(&mut back).unwrap();
            assert_eq!(back, sent);
        }
    }

    #[test]
    fn askers_are_counted() {
        let port = count().unwrap();
        for before in ["0\n", "1\n", "2\n"] {
            let mut said = String::new();
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
            stream.unwrap().read_to_string(&mut said).unwrap();
            assert_eq!(said, before);
        }
    }
}
