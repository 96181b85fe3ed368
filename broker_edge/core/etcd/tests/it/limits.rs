//! Values, lists and stores that are too large.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_etcd::{
    CasOutcome, Fault, KEYS_MAX, LISTING_BYTES_MAX, MetaStore, Update, VALUE_BYTES_MAX, Watch,
};

use crate::support::{Etcd, run, sentence, update};

#[test]
fn a_large_value_is_refused_by_name() {
    let etcd = Etcd::start(1);
    run(async {
        let client = etcd.client();
        let mut watch = client.watch("/l/");
        assert!(matches!(update(&mut watch).await, Update::All { .. }));
        let (key, value) = (
            STANDARD.encode("/l/a"),
            STANDARD.encode(vec![b'v'; VALUE_BYTES_MAX + 1]),
        );
        etcd.members[0].post("kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#));
        let Update::Failed(error) = watch.next().await else {
            panic!("the value is too large");
        };
        let text = error.to_string();
        assert!(text.contains("has 65537 bytes in key \"/l/a\""), "{text}");
        assert_eq!(sentence(client.get("/l/a").await), text);
        assert_eq!(sentence(client.get_all("/l/").await), text);
        let outcome = client.put_if_absent("/l/a", "v".into(), None).await;
        assert!(
            matches!(&outcome, CasOutcome::NotDone(error) if error.to_string() == text),
            "{outcome:?}"
        );
        let outcome = client.put_if_absent("/l/b", "v".into(), None).await;
        assert!(matches!(outcome, CasOutcome::Done(_)), "{outcome:?}");
        assert!(
            matches!(update(&mut watch).await, Update::Changes(_)),
            "the watch goes on"
        );
    });
}

/// So many puts has a transaction of etcd at most.
const PUTS_MAX: usize = 128;

#[test]
fn a_prefix_with_too_many_keys_is_refused_by_name() {
    let etcd = Etcd::start(1);
    run(async {
        let put = |n: usize| {
            let key = STANDARD.encode(format!("/many/{n:06}"));
            format!(r#"{{"requestPut":{{"key":"{key}","value":""}}}}"#)
        };
        for first in (0..KEYS_MAX).step_by(PUTS_MAX) {
            let puts: Vec<_> = (first..first + PUTS_MAX).map(put).collect();
            etcd.members[0].post("kv/txn", &format!(r#"{{"success":[{}]}}"#, puts.join(",")));
        }
        let client = etcd.client();
        let listing = client.get_all("/many/").await.expect("so many are read");
        assert_eq!(listing.keys.len(), KEYS_MAX);
        let outcome = client.put_if_absent("/many/x", "v".into(), None).await;
        assert!(matches!(outcome, CasOutcome::Done(_)), "{outcome:?}");
        let text = sentence(client.get_all("/many/").await);
        assert!(text.contains("more than 16384 keys or"), "{text}");
    });
}

#[test]
fn a_prefix_with_too_many_bytes_is_refused_by_name() {
    let etcd = Etcd::start(1);
    run(async {
        let client = etcd.client();
        let count = LISTING_BYTES_MAX / VALUE_BYTES_MAX;
        let put = async |n: usize| {
            let (key, value) = (format!("/much/{n:06}"), vec![b'v'; VALUE_BYTES_MAX]);
            let outcome = client.put_if_absent(&key, value, None).await;
            assert!(matches!(outcome, CasOutcome::Done(_)), "{outcome:?}");
        };
        for n in 1..count {
            put(n).await;
        }
        let listing = client.get_all("/much/").await.expect("so much is read");
        assert_eq!(listing.keys.len(), count - 1);
        // The names of the keys count, too.
        put(count).await;
        let text = sentence(client.get_all("/much/").await);
        assert!(
            text.contains("or 33554432 bytes under \"/much/\""),
            "{text}"
        );
    });
}

#[test]
fn a_page_that_is_too_large_is_named() {
    let etcd = Etcd::start(1);
    run(async {
        let client = etcd.client();
        let value = STANDARD.encode(vec![b'v'; 1024 * 1024]);
        for n in 0..9 {
            let key = STANDARD.encode(format!("/page/{n}"));
            etcd.members[0].post("kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#));
        }
        let text = sentence(client.get_all("/page/").await);
        assert!(text.contains("sent an answer that is too large"), "{text}");
        assert!(client.get("/other").await.is_ok());
    });
}

/// The write that fills a store is carried out, and etcd says of it what it says of those that it refuses.
#[test]
fn a_full_store_is_named_and_its_last_write_is_unknown() {
    let etcd = Etcd::start_with(1, "http", &["--quota-backend-bytes", "100000"]);
    run(async {
        let client = etcd.client();
        let mut written = 0;
        let error = loop {
            let outcome = client
                .put_if_absent(&format!("/{written}"), vec![b'v'; 50_000], None)
                .await;
            match outcome {
                CasOutcome::Done(_) => written += 1,
                CasOutcome::Unknown(error) => break error,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(error.fault, Fault::Full);
        let listing = client.get_all("/").await.expect("it can be read");
        let last = listing.keys.len() - written;
        assert!(last <= 1, "{last} more keys than writes");
    });
}
