//! A small legacy API that charges again whenever it is asked again: what Retrysafe stands in front
//! of in `examples/compose`. Standard library only.
//!
//! `POST /charges` charges, `GET /charges` tells how often. `LISTEN` is the address, default
//! `0.0.0.0:3000`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

static CHARGES: AtomicUsize = AtomicUsize::new(0);

fn main() -> io::Result<()> {
    let address = std::env::var("LISTEN").unwrap_or_else(|_| "0.0.0.0:3000".to_owned());
    let listener = TcpListener::bind(&address)?;
    println!("legacy API on {}", listener.local_addr()?);
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || serve(stream));
    }
    Ok(())
}

fn serve(stream: TcpStream) -> io::Result<()> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    while let Some((method, path)) = read_request(&mut reader)? {
        let (status, body) = match (method.as_str(), path.as_str()) {
            ("POST", "/charges") => {
                let number = CHARGES.fetch_add(1, Ordering::SeqCst) + 1;
                println!("charge {number}");
                ("201 Created", format!("{{\"charge\":{number}}}\n"))
            }
            ("GET", "/charges") => {
                let count = CHARGES.load(Ordering::SeqCst);
                ("200 OK", format!("{{\"charges\":{count}}}\n"))
            }
            _ => ("404 Not Found", "{\"error\":\"try /charges\"}\n".to_owned()),
        };
        write!(
            writer,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
    }
    Ok(())
}

/// Method and path of the next request; its body is read and ignored.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<(String, String)>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ').map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else {
        return Ok(None);
    };
    let mut length: u64 = 0;
    loop {
        let mut field = String::new();
        if reader.read_line(&mut field)? == 0 || field.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = field.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    io::copy(&mut reader.take(length), &mut io::sink())?;
    Ok(Some((method, path)))
}
