//! Members that are killed, paused, emptied or of another cluster.

use std::time::Duration;

use headwater_etcd::{
    CasOutcome, Client, Fault, MetaStore, Patience, Renewal, Revision, Update, Watch,
};

use crate::support::{Etcd, PATIENT, client, run, sentence, update};

/// For members that do not answer.
const HASTY: Patience = Patience {
    request: Duration::from_secs(1),
    ..PATIENT
};

/// Increments a counter until it is known to be written, as the cluster changes a key.
async fn increment(client: &Client) -> u64 {
    loop {
        let Ok(read) = client.get("/counter").await else {
            continue;
        };
        let number = read.found.as_ref().map_or(0, |found| {
            String::from_utf8_lossy(&found.value)
                .parse()
                .expect("a number")
        });
        let expected = read.found.map_or(Revision(0), |found| found.revision);
        let next: u64 = number + 1;
        let outcome = client
            .cas("/counter", expected, next.to_string().into(), None)
            .await;
        if matches!(outcome, CasOutcome::Done(_)) {
            return next;
        }
    }
}

/// Which members lead cannot be chosen, so each of the three is hurt in turn.
async fn counts_on(
    etcd: &mut Etcd,
    hurt: impl Fn(&mut Etcd, usize),
    heal: impl Fn(&mut Etcd, usize),
) {
    let client = client(&etcd.urls(), None, None, PATIENT);
    let mut last = 0;
    for member in 0..3 {
        hurt(etcd, member);
        for _ in 0..3 {
            let next = increment(&client).await;
            // More than one above: a write with an unknown outcome was carried out.
            assert!(next > last, "{next} after {last}");
            last = next;
        }
        heal(etcd, member);
    }
}

#[test]
fn writes_go_on_when_a_member_is_killed() {
    let mut etcd = Etcd::start(3);
    let kill = |etcd: &mut Etcd, member: usize| etcd.members[member].kill();
    let start = |etcd: &mut Etcd, member: usize| etcd.members[member].start_again();
    run(counts_on(&mut etcd, kill, start));
}

#[test]
fn reads_go_on_when_the_member_in_use_is_paused() {
    let etcd = Etcd::start(3);
    run(async {
        let client = client(&etcd.urls(), None, None, HASTY);
        while client.get("/a").await.is_err() {}
        let used = client.member().expect("connected").to_string();
        let paused = etcd.members.iter().find(|member| member.url == used);
        paused.expect("one of them").pause();
        let text = loop {
            match client.get("/a").await {
                Ok(_) => break client.member().expect("connected").to_string(),
                Err(error) => drop(error),
            }
        };
        assert_ne!(text, used);
    });
}

#[test]
fn a_member_without_a_majority_says_so() {
    let mut etcd = Etcd::start(3);
    run(async {
        etcd.members[0].kill();
        etcd.members[1].kill();
        let client = client(&[&etcd.members[2].url], None, None, HASTY);
        let text = loop {
            // Until it has noticed that its leader is gone, it does not answer.
            let text = sentence(client.get("/a").await);
            if text.contains("has no leader") {
                break text;
            }
        };
        assert!(text.contains("majority"), "{text}");
        let outcome = client.put_if_absent("/a", "v".into(), None).await;
        assert!(
            matches!(&outcome, CasOutcome::NotDone(error) if error.fault == Fault::NoLeader),
            "{outcome:?}"
        );
    });
}

#[test]
fn a_member_of_another_cluster_is_refused() {
    let (mut one, other) = (Etcd::start(1), Etcd::start(1));
    run(async {
        let urls = [one.members[0].url.as_str(), other.members[0].url.as_str()];
        let client = client(&urls, None, None, PATIENT);
        client.get("/a").await.expect("read");
        let cluster_id = client.cluster_id().expect("known");
        one.members[0].kill();
        let text = sentence(client.get("/a").await);
        assert!(
            text.contains(&other.members[0].url)
                && text.contains("name the members of one cluster"),
            "{text}"
        );
        assert!(text.contains(&format!("not {cluster_id:x}")), "{text}");
        let outcome = client.put_if_absent("/a", "v".into(), None).await;
        assert!(matches!(outcome, CasOutcome::NotDone(_)), "{outcome:?}");
        assert_eq!(
            other.client().get("/a").await.expect("read").found,
            None,
            "nothing was written there"
        );
    });
}

#[test]
fn a_store_that_went_back_is_refused() {
    let mut etcd = Etcd::start(1);
    run(async {
        let client = etcd.client();
        for key in ["/a", "/b"] {
            let outcome = client.put_if_absent(key, "v".into(), None).await;
            assert!(matches!(outcome, CasOutcome::Done(_)), "{outcome:?}");
        }
        let cluster_id = client.cluster_id();
        etcd.members[0].kill();
        etcd.empty(0);
        etcd.members[0].start_again();
        let text = sentence(client.get("/a").await);
        assert!(text.contains("revision 1, and 3 was seen before"), "{text}");
        // The id of a cluster is made of its addresses, so it does not tell.
        let fresh = etcd.client();
        fresh.get("/a").await.expect("read");
        assert_eq!(fresh.cluster_id(), cluster_id);
    });
}

#[test]
fn a_lease_that_nobody_renews_ends() {
    let etcd = Etcd::start(1);
    run(async {
        let client = etcd.client();
        // Of etcd: it lengthens it to what its election timeout allows.
        let lease = client.grant(Duration::from_secs(1)).await.expect("granted");
        let outcome = client.put_if_absent("/a", "v".into(), Some(lease)).await;
        assert!(matches!(outcome, CasOutcome::Done(_)), "{outcome:?}");
        let mut watch = client.watch("/a");
        assert!(matches!(watch.next().await, Update::All { .. }));
        let Update::Changes(changes) = update(&mut watch).await else {
            panic!("the key goes");
        };
        assert_eq!(changes[0].value, None);
        assert_eq!(client.renew(lease).await, Ok(Renewal::Expired));
    });
}
