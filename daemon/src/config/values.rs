//! Values of single keys: what they may be, in a sentence if they aren't.

use super::field::{Field, shown};
use blk::config::SERIAL_BYTES;
use plan::{MAX_WEIGHT, Mac, parse_rate};

pub fn weight(field: &Field<'_, '_, '_, '_>) -> Option<u32> {
    let needed = "a whole number, such as 100";
    field.number(needed, 1..=MAX_WEIGHT.into()).map(|weight| weight as u32)
}

/// A serial number.
pub fn text(text: &str) -> Result<String, String> {
    if text.len() > SERIAL_BYTES || !text.is_ascii() {
        let found = shown(text);
        return Err(format!(
            "`{found}` is no serial number; use {SERIAL_BYTES} ASCII characters at most"
        ));
    }
    Ok(text.to_owned())
}

/// A rate that lets something through.
pub fn some_rate(text: &str) -> Result<u64, String> {
    match parse_rate(text) {
        Ok(0) => Err(format!("`{}` stops all of it; give more, such as \"100M/s\"", shown(text))),
        read => read.map_err(|error| error.to_string()),
    }
}

pub fn switch_name(text: &str) -> Result<String, &'static str> {
    match text {
        "" => Err("the name is empty; give one such as \"lan\""),
        name => Ok(name.to_owned()),
    }
}

/// The address of a station.
pub fn station(text: &str) -> Result<Mac, String> {
    let mac = text.parse::<Mac>().map_err(|error| error.to_string())?;
    match net::Mac(mac.0) {
        own if own.is_station() => Ok(mac),
        own if own.is_group() => {
            Err(format!("{mac} is a group's address; a station's first byte is even"))
        }
        _ => Err(format!("{mac} is no station's address; give one such as \"02:00:00:00:00:01\"")),
    }
}
