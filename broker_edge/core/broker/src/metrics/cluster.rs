//! Metrics of a node of a cluster, set at each scrape. A broker alone has none of them.

use std::sync::atomic::Ordering;

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
            elections: Counter = "elections", "Times that this node began to serve clients";
            etcd_reachable: Gauge = "etcd_reachable", "1 while etcd answers";
            lag: Family<OfNode, Gauge> =
                "follower_lag_records", "Records that a follower has not synced, as the leader knows";
        }
    }
}

impl ClusterMetrics {
    pub fn set(&self, report: &Report) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.leads.set(i64::from(report.role == Role::Leader));
        self.epoch.set(number(report.epoch));
        self.in_sync.set(number(report.in_sync.len() as u64));
        self.elections
            .inner()
            .store(report.elections, Ordering::Relaxed);
        self.etcd_reachable.set(i64::from(report.etcd.reachable));
        // Only a leader knows it.
        self.lag.clear();
        for (node, records) in &report.lag {
            let label = [("node", node.clone())];
            self.lag.get_or_create(&label).set(number(*records));
        }
    }
}
