//! New certificate files while the sidecar runs.

use std::os::unix::fs::symlink;

use super::{paying, place};
use crate::support::authority::{Authority, TlsClient};
use crate::support::in_time;

const TAKEN: &str = "retrysafe_certificate_reloads_total{result=\"ok\"}";
const REFUSED: &str = "retrysafe_certificate_reloads_total{result=\"failed\"}";

#[test]
fn garbage_keeps_the_old_certificate_and_a_new_pair_replaces_it() {
    let place = place("client_ca_file = \"ca.crt\"\nclient_auth = \"optional\"");
    let (folder, addr) = (place.folder.path(), place.sidecar.addr);
    let mut open = place.client();
    assert_eq!(open.send(&paying("a")).unwrap().text(), "paid 1");

    // The key of another certificate.
    let next = Authority::new("next");
    let pair = next.server();
    std::fs::write(folder.join("tls.key"), &pair.key).unwrap();
    place.sidecar.wait_metric(REFUSED, |count| count == 1);
    place.sidecar.wait_log("certificate_refused");
    assert!(open.send(&paying("a")).unwrap().is_replay());
    assert!(place.client().send(&paying("a")).unwrap().is_replay());

    // Now the rest, in pieces as a person would.
    std::fs::write(folder.join("ca.crt"), next.certificate()).unwrap();
    std::fs::write(folder.join("tls.crt"), &pair.certificate).unwrap();
    place.sidecar.wait_metric(TAKEN, |count| count == 1);
    // The connection that stands goes on; the old certificate is shown to nobody new.
    assert!(open.send(&paying("a")).unwrap().is_replay());
    assert_eq!(place.client().send(&paying("a")), None);
    let client = next.client();
    let mut renewed = TlsClient::new(addr, &next, Some(&client));
    assert!(renewed.send(&paying("a")).unwrap().is_replay());
    // So is the authority over clients.
    let former = place.authority.client();
    let mut refused = TlsClient::new(addr, &next, Some(&former));
    assert_eq!(refused.send(&paying("a")), None);
    assert_eq!(place.upstream.seen().len(), 1);
}

/// As mounted secrets are swapped: the files are links into a folder that is itself a link.
#[tokio::test]
async fn a_swapped_symbolic_link_is_noticed() {
    let place = place("");
    let folder = place.folder.path();
    let next = Authority::new("next");
    for (name, pair) in [("v1", place.authority.server()), ("v2", next.server())] {
        std::fs::create_dir(folder.join(name)).unwrap();
        pair.write(&folder.join(name), "tls");
    }
    let swap = |target: &str| {
        symlink(target, folder.join("new")).unwrap();
        std::fs::rename(folder.join("new"), folder.join("data")).unwrap();
    };
    swap("v1");
    for file in ["tls.crt", "tls.key"] {
        std::fs::remove_file(folder.join(file)).unwrap();
        symlink(format!("data/{file}"), folder.join(file)).unwrap();
    }
    place.sidecar.wait_metric(TAKEN, |count| count == 1);
    swap("v2");
    let addr = place.sidecar.addr;
    in_time("the new certificate", async || {
        TlsClient::new(addr, &next, None)
            .send(&paying("k"))
            .is_some()
    })
    .await;
    assert_eq!(place.sidecar.metric(REFUSED), 0);
}
