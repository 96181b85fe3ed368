//! What every store promises: the same tests for etcd and for the fake.

use std::time::Duration;

use headwater_etcd::fake::{FakeStore, Loss};
use headwater_etcd::{
    CasOutcome, Change, Fault, KeyValue, LeaseId, MetaStore, Renewal, Revision, Update, Watch, Why,
};

use crate::support::{Etcd, run, update};

fn done(outcome: CasOutcome) -> Revision {
    match outcome {
        CasOutcome::Done(revision) => revision,
        other => panic!("not written: {other:?}"),
    }
}

fn put(key: &str, revision: Revision, value: &str) -> Change {
    Change {
        key: key.to_owned(),
        revision,
        value: Some(value.into()),
    }
}

fn found(key: &str, revision: Revision, value: &str, lease: Option<LeaseId>) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        revision,
        value: value.into(),
        lease,
    }
}

async fn a_key_changes_only_from_the_revision_that_is_named(store: impl MetaStore) {
    let first = done(store.put_if_absent("/c/a", "1".into(), None).await);
    let now = found("/c/a", first, "1", None);
    let conflict = CasOutcome::Conflict(Some(now.clone()));
    assert_eq!(
        store.put_if_absent("/c/a", "2".into(), None).await,
        conflict
    );
    assert_eq!(
        store
            .cas("/c/a", Revision(first.0 + 1), "2".into(), None)
            .await,
        conflict
    );
    assert_eq!(
        store.cas("/c/b", first, "2".into(), None).await,
        CasOutcome::Conflict(None)
    );
    let read = store.get("/c/a").await.expect("read");
    assert_eq!((read.revision, read.found), (first, Some(now)));
    let second = done(store.cas("/c/a", first, "2".into(), None).await);
    assert!(second > first);
    let read = store.get("/c/a").await.expect("read");
    assert_eq!(read.found, Some(found("/c/a", second, "2", None)));
    assert_eq!(store.get("/c/b").await.expect("read").found, None);
}

async fn all_keys_of_a_prefix_are_listed_and_no_others(store: impl MetaStore) {
    let mut keys = Vec::new();
    for n in 0..230 {
        let key = format!("/l/{n:03}");
        let revision = done(store.put_if_absent(&key, "v".into(), None).await);
        keys.push(found(&key, revision, "v", None));
    }
    done(store.put_if_absent("/l", "v".into(), None).await);
    let revision = done(store.put_if_absent("/m/0", "v".into(), None).await);
    let listing = store.get_all("/l/").await.expect("listed");
    assert_eq!(listing.revision, revision);
    assert_eq!(listing.keys, keys);
    assert_eq!(store.get_all("/n/").await.expect("listed").keys, []);
}

async fn a_watch_shows_all_keys_and_then_each_change(store: impl MetaStore) {
    let first = done(store.put_if_absent("/w/a", "1".into(), None).await);
    let mut watch = store.watch("/w/");
    let Update::All { why, listing } = watch.next().await else {
        panic!("all keys come first");
    };
    assert_eq!(
        (why, listing.keys),
        (Why::First, vec![found("/w/a", first, "1", None)])
    );
    let second = done(store.cas("/w/a", first, "2".into(), None).await);
    assert_eq!(
        update(&mut watch).await,
        Update::Changes(vec![put("/w/a", second, "2")])
    );
    done(store.put_if_absent("/x/a", "1".into(), None).await);
    let third = done(store.cas("/w/a", second, "3".into(), None).await);
    assert_eq!(
        update(&mut watch).await,
        Update::Changes(vec![put("/w/a", third, "3")])
    );
}

async fn a_wait_for_a_watch_may_be_dropped(store: impl MetaStore) {
    let mut watch = store.watch("/d/");
    assert!(matches!(watch.next().await, Update::All { .. }));
    let mut revision = Revision(0);
    for n in 0..20 {
        tokio::select! {
            biased;
            update = watch.next() => panic!("nothing has changed: {update:?}"),
            () = tokio::task::yield_now() => {}
        }
        revision = done(
            store
                .cas("/d/a", revision, n.to_string().into(), None)
                .await,
        );
        let expected = Update::Changes(vec![put("/d/a", revision, &n.to_string())]);
        assert_eq!(update(&mut watch).await, expected);
    }
}

async fn the_keys_of_a_lease_go_with_it(store: impl MetaStore) {
    let lease = store.grant(Duration::from_secs(60)).await.expect("granted");
    let first = done(store.put_if_absent("/e/a", "1".into(), Some(lease)).await);
    let mut watch = store.watch("/e/");
    let Update::All { listing, .. } = update(&mut watch).await else {
        panic!("all keys come first");
    };
    assert_eq!(listing.keys, [found("/e/a", first, "1", Some(lease))]);
    let alive = Renewal::Alive(Duration::from_secs(60));
    assert_eq!(store.renew(lease).await, Ok(alive));
    assert_eq!(store.revoke(lease).await, Ok(()));
    let Update::Changes(changes) = update(&mut watch).await else {
        panic!("the key is gone");
    };
    assert_eq!(changes.len(), 1);
    assert_eq!(
        (changes[0].key.as_str(), &changes[0].value),
        ("/e/a", &None)
    );
    assert_eq!(store.renew(lease).await, Ok(Renewal::Expired));
    assert_eq!(store.revoke(lease).await, Ok(()), "once more is no error");
    match store.put_if_absent("/e/a", "1".into(), Some(lease)).await {
        CasOutcome::NotDone(error) => assert_eq!(error.fault, Fault::NoLease),
        other => panic!("a key of a lease that has ended: {other:?}"),
    }
}

async fn all(store: impl MetaStore) {
    a_key_changes_only_from_the_revision_that_is_named(store.clone()).await;
    all_keys_of_a_prefix_are_listed_and_no_others(store.clone()).await;
    a_watch_shows_all_keys_and_then_each_change(store.clone()).await;
    a_wait_for_a_watch_may_be_dropped(store.clone()).await;
    the_keys_of_a_lease_go_with_it(store).await;
}

#[test]
fn etcd_keeps_the_promises_of_a_store() {
    let etcd = Etcd::start(1);
    run(all(etcd.client()));
}

#[test]
fn the_fake_keeps_the_promises_of_a_store() {
    run(all(FakeStore::default()));
}

#[test]
fn the_fake_loses_a_request_an_answer_or_delays_it() {
    run(async {
        let store = FakeStore::default();
        let put = |value: &str| store.put_if_absent("/a", value.into(), None);
        let value = || async {
            store
                .get("/a")
                .await
                .expect("read")
                .found
                .map(|found| found.value)
        };
        for (loss, after) in [
            (Loss::Request, None),
            (Loss::Late, None),
            (Loss::Answer, Some(b"v".to_vec())),
        ] {
            store.lose(loss);
            let value_sent = if loss == Loss::Late { "late" } else { "v" };
            assert!(
                matches!(put(value_sent).await, CasOutcome::Unknown(_)),
                "{loss:?}"
            );
            assert_eq!(value().await, after, "{loss:?}");
        }
        store.land();
        assert_eq!(
            value().await,
            Some(b"v".to_vec()),
            "what lands late is compared, too"
        );
    });
}

#[test]
fn the_fake_goes_away_compacts_and_ends_leases() {
    run(async {
        let store = FakeStore::default();
        let mut watch = store.watch("/");
        assert!(matches!(
            watch.next().await,
            Update::All {
                why: Why::First,
                ..
            }
        ));
        store.set_away(true);
        assert!(matches!(watch.next().await, Update::Failed(_)));
        assert!(store.get("/a").await.is_err());
        assert!(matches!(
            store.put_if_absent("/a", vec![], None).await,
            CasOutcome::NotDone(_)
        ));
        store.set_away(false);
        let lease = store.grant(Duration::from_secs(1)).await.expect("granted");
        done(store.put_if_absent("/a", vec![], Some(lease)).await);
        store.compact();
        let Update::All { why, listing } = watch.next().await else {
            panic!("changes are compacted");
        };
        assert_eq!((why, listing.keys.len()), (Why::Missed, 1));
        store.expire(lease);
        let Update::Changes(changes) = watch.next().await else {
            panic!("the lease has ended");
        };
        assert_eq!(changes[0].value, None);
    });
}
