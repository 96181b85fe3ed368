//! Metrics of a node of a cluster, made at each scrape. A broker alone has none of them, nor a node that does not answer.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::cluster::report::{Report, Role};

/// The name of a node; a cluster has three.
type OfNode = [(&'static str, String); 1];

metrics! {
    pub struct ClusterMetrics {
        "cluster" {
            leads: Gauge = "leads", "1 while this node leads the log";
            epoch: Gauge = "epoch", "Term of the leader that this node knows";
            in_sync: Gauge = "in_sync_members", "Nodes that a record waits for, the leader included";
            elections: Counter =
                "elections", "Times that this node was to serve clients, after an election or a pause";
            etcd_reachable: Gauge = "etcd_reachable", "1 while etcd answers";
            lag: Family<OfNode, Gauge> =
                "follower_lag_records", "Records that a follower has not synced, as the leader knows";
        }
    }
}

impl ClusterMetrics {
    pub fn of(report: &Report) -> Self {
        let new = Self::default();
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        new.leads.set(i64::from(report.role == Role::Leader));
        new.epoch.set(number(report.epoch));
        new.in_sync.set(number(report.in_sync.len() as u64));
        new.elections.inc_by(report.elections);
        new.etcd_reachable.set(i64::from(report.etcd.reachable));
        // Only a leader knows it.
        for (node, records) in &report.lag {
            let label = [("node", node.clone())];
            new.lag.get_or_create(&label).set(number(*records));
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::cluster::report::Etcd;
    use crate::metrics::Metrics;

    fn leader() -> Report {
        Report {
            cluster: "berlin".to_owned(),
            node: "n1".to_owned(),
            member: "n1/1".to_owned(),
            role: Role::Leader,
            leader: Some("n1".to_owned()),
            epoch: 7,
            in_sync: vec!["n1".to_owned(), "n2".to_owned()],
            replicas: Vec::new(),
            log_id: String::new(),
            trust: "sound",
            etcd: Etcd { reachable: true },
            partitions: Vec::new(),
            nodes: BTreeMap::new(),
            lag: BTreeMap::from([("n2".to_owned(), 5)]),
            elections: 3,
        }
    }

    /// A node that hangs leads no more in the eyes of the others.
    #[test]
    fn a_node_that_does_not_answer_has_no_figures_instead_of_old_ones() {
        let metrics = Metrics::default();
        let scraped = |report: Option<&Report>| {
            *metrics.cluster.lock() = report.map(ClusterMetrics::of);
            let mut text = String::new();
            let written = prometheus_client::encoding::text::encode(&mut text, &metrics.registry());
            written.expect("a text");
            text
        };
        let text = scraped(Some(&leader()));
        for line in [
            "headwater_cluster_leads 1\n",
            "headwater_cluster_in_sync_members 2\n",
            "headwater_cluster_elections_total 3\n",
            "headwater_cluster_follower_lag_records{node=\"n2\"} 5\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!scraped(None).contains("headwater_cluster"));
    }
}
