//! `[server.tls]`: there as soon as one of its keys is written, and then whole. `[upstream.tls]`, `[store.tls]`,
//! `[store.cache_tls]`.

use std::path::PathBuf;

use super::Reader;
use crate::config::Config;
use crate::config::diagnostic::Sink;
use crate::config::value::{Value, choice, text};
use crate::tls::{ClientAuth, ClientKeys, ClientSettings, ServerSettings, is_name};

const CERTIFICATE: &str = "server.tls.cert_file";
const KEY: &str = "server.tls.key_file";
const CLIENT_CA: &str = "server.tls.client_ca_file";
const CLIENT_AUTH: &str = "server.tls.client_auth";

/// Sets `server.tls`, and what the proxy says of it.
pub(super) fn server(reader: &mut Reader<'_, '_>, config: &mut Config) {
    let (mut cert_file, mut key_file) = (PathBuf::new(), PathBuf::new());
    let mut client_ca_file = None;
    let mut client_auth = ClientAuth::Required;
    reader.set(CERTIFICATE, &mut cert_file, path);
    reader.set(KEY, &mut key_file, path);
    reader.set(CLIENT_CA, &mut client_ca_file, |value, sink| {
        path(value, sink).map(Some)
    });
    reader.set(
        CLIENT_AUTH,
        &mut client_auth,
        choice(&[
            ("required", ClientAuth::Required),
            ("optional", ClientAuth::Optional),
        ]),
    );
    if !is_whole(reader) {
        return;
    }
    config.proxy.tls = true;
    config.server.tls = Some(ServerSettings {
        cert_file,
        key_file,
        client_ca_file,
        client_auth,
    });
}

/// Whether the keys that are there are enough; reports those that are missing.
fn is_whole(reader: &mut Reader<'_, '_>) -> bool {
    let written = [CERTIFICATE, KEY, CLIENT_CA, CLIENT_AUTH].map(|key| reader.values.get(key));
    let Some(first) = written.into_iter().flatten().next() else {
        return false;
    };
    let mut whole = true;
    for (key, name) in [(CERTIFICATE, "cert_file"), (KEY, "key_file")] {
        if !reader.has(key) {
            let message = format!("`server.tls` lacks `{name}`");
            let help = "a certificate and its key belong together: write cert_file and key_file";
            reader.sink.error(&first.at, message, help);
            whole = false;
        }
    }
    if let Some(value) = reader
        .values
        .get(CLIENT_AUTH)
        .filter(|_| !reader.has(CLIENT_CA))
    {
        let message = "`server.tls.client_auth` means nothing without `client_ca_file`";
        let help = "write client_ca_file, which says who vouches for clients, or remove it";
        reader.sink.error(&value.at, message, help);
        whole = false;
    }
    whole
}

/// Sets `upstream.tls`.
pub(super) fn upstream(reader: &mut Reader<'_, '_>, config: &mut Config) {
    let keys = [
        "upstream.tls.ca_file",
        "upstream.tls.server_name",
        "upstream.tls.cert_file",
        "upstream.tls.key_file",
    ];
    client(reader, keys, &mut config.proxy.upstream.tls);
}

/// Sets `store.tls`.
pub(super) fn store(reader: &mut Reader<'_, '_>, config: &mut Config) {
    let keys = [
        "store.tls.ca_file",
        "store.tls.server_name",
        "store.tls.cert_file",
        "store.tls.key_file",
    ];
    client(reader, keys, &mut config.store.tls);
}

/// `store.cache_tls`.
pub(super) fn cache(reader: &mut Reader<'_, '_>) -> ClientSettings {
    let keys = [
        "store.cache_tls.ca_file",
        "store.cache_tls.server_name",
        "store.cache_tls.cert_file",
        "store.cache_tls.key_file",
    ];
    let mut tls = ClientSettings::plain(ClientKeys::CACHE);
    client(reader, keys, &mut tls);
    tls
}

/// Authority, name, certificate and key, as `keys` are called.
fn client(reader: &mut Reader<'_, '_>, keys: [&str; 4], tls: &mut ClientSettings) {
    let [authority, name, certificate_key, private_key] = keys;
    let some = |value: &Value, sink: &mut Sink<'_>| path(value, sink).map(Some);
    reader.set(authority, &mut tls.ca_file, some);
    reader.set(name, &mut tls.server_name, |value, sink| {
        let name = text(value, sink)?;
        if is_name(name) {
            return Some(Some(name.to_owned()));
        }
        let help =
            "write the name that stands in the other side's certificate, e.g. \"api.example.com\"";
        value.wrong(sink, "is no host name or address", help)
    });
    let (mut certificate, mut key) = (None, None);
    reader.set(certificate_key, &mut certificate, some);
    reader.set(private_key, &mut key, some);
    for (one, other) in [
        (certificate_key, private_key),
        (private_key, certificate_key),
    ] {
        if let Some(value) = reader.values.get(one).filter(|_| !reader.has(other)) {
            let message = format!("`{one}` is written without `{other}`");
            let help = "a certificate and its key belong together: write both or neither";
            reader.sink.error(&value.at, message, help);
        }
    }
    tls.pair = certificate.zip(key);
}

fn path(value: &Value, sink: &mut Sink<'_>) -> Option<PathBuf> {
    match text(value, sink)? {
        "" => value.wrong(sink, "is empty", "write the path of a file"),
        path => Some(PathBuf::from(path)),
    }
}
