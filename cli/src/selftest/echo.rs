//! A server on this machine's loopback address that sends back what it gets, which guests reach
//! as 10.0.2.2.

use anyhow::{Context, Result};
use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
};

/// Serves any number of connections, for as long as this program runs; gives the port.
pub fn serve() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .context("no port can be opened on 127.0.0.1")?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A connection that breaks is its guest's to complain of.
            thread::spawn(move || send_back(stream));
        }
    });
    Ok(port)
}

/// Until the other side has sent its last byte.
fn send_back(mut stream: TcpStream) -> io::Result<()> {
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
        let port = serve().unwrap();
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
}
