//! The changes themselves, in the order of docs/upgrade.md.

use crate::config::{CertificateUser, ClientIds};

use super::acl_lines::RuleLine;
use super::{Change, Facts, Finding};

pub const CHANGES: &[Change] = &[
    Change::new("client-ids", client_ids),
    Change::new("sessions", sessions),
    Change::new("operators", operators),
    Change::new("groups", groups),
    Change::new("quotas", quotas),
    Change::new("flight-shares", flight_shares),
    Change::new("records", records),
    Change::new("doors", doors),
    Change::new("waiting", waiting),
    Change::new("hosts", hosts),
    Change::new("origins", origins),
];

fn at(place: impl Into<String>, meaning: impl Into<String>) -> Finding {
    Finding {
        place: place.into(),
        meaning: meaning.into(),
    }
}

fn client_ids(facts: &Facts<'_>) -> Vec<Finding> {
    let auth = &facts.config.auth;
    let mut found = Vec::new();
    if !facts.has_users() || auth.client_ids == ClientIds::Any {
        return found;
    }
    let rules = facts.rules.iter();
    for rule in rules.filter(|rule| facts.client_id_lines.contains(&rule.number)) {
        let otherwise = if rule.is_denial() {
            "for any other client id the denial applies as if `%c` matched every id"
        } else {
            "for any other client id the rule allows nothing"
        };
        found.push(at(
            facts.line(rule.number),
            format!(
                "`{}` accepts a user's client id only if it is the user's name, matches a `client-id` line of that user, or stands in \
                 the certificate; {otherwise}: add `client-id` lines, or set auth.client_ids: any",
                rule.text
            ),
        ));
    }
    if auth.token.keys_file.is_some() {
        found.push(at(
            "auth.token.keys_file",
            "`%c` in the `acl` claim of a token follows the same rule: put `client-id` into the claim",
        ));
    }
    found
}

fn sessions(facts: &Facts<'_>) -> Vec<Finding> {
    let auth = &facts.config.auth;
    let proofs = [
        ("auth.password_file", auth.password_file.is_some()),
        ("auth.token.keys_file", auth.token.keys_file.is_some()),
        (
            "auth.certificate.user",
            auth.certificate.user != CertificateUser::Ignored,
        ),
    ];
    let users = proofs.into_iter().filter(|(_, is_set)| *is_set);
    users
        .map(|(key, _)| {
            at(
                key,
                "other users may not use a client id with which a user has a session (0x85, code 2); a session from before belongs to the \
                 first user who connects with its id: before a device changes its user, end its session",
            )
        })
        .collect()
}

fn operators(facts: &Facts<'_>) -> Vec<Finding> {
    let auth = &facts.config.auth;
    if auth.acl_file.is_some() || !auth.operators.is_empty() {
        return Vec::new();
    }
    if facts.has_users() {
        return vec![at(
            "auth.acl_file",
            "without an ACL file every user was an operator; now none is: name operators in auth.operators, or write an ACL file with `operator` \
             lines; until then nobody may remove groups, take backups, reload or use /api/v1",
        )];
    }
    if auth.allow_anonymous && !facts.config.is_local() {
        return vec![at(
            "auth.allow_anonymous",
            "on a broker without users that listens beyond loopback nobody is an operator: /api/v1, remove_group and backup are refused; add users and name one in \
             auth.operators",
        )];
    }
    Vec::new()
}

fn groups(facts: &Facts<'_>) -> Vec<Finding> {
    let meaning = |what: &str| {
        format!(
            "{what} no longer gives a right to other users' consumer groups: a group belongs to the user who made it; add `group NAME` lines for \
             groups that several users commit to"
        )
    };
    if !facts.has_users() {
        return Vec::new();
    }
    if facts.config.auth.acl_file.is_none() {
        return vec![at("auth.acl_file", meaning("being admitted"))];
    }
    let is_concerned = |rule: &&RuleLine<'_>| {
        let is_operator = rule
            .user
            .is_some_and(|user| facts.operators.contains(&user));
        rule.is_replay() && !is_operator
    };
    let replays = facts.rules.iter().filter(is_concerned);
    replays
        .map(|rule| {
            at(
                facts.line(rule.number),
                meaning(&format!("`{}`", rule.text)),
            )
        })
        .collect()
}

fn quotas(facts: &Facts<'_>) -> Vec<Finding> {
    if !facts.has_users() {
        return Vec::new();
    }
    let (mqtt, broker) = (&facts.config.mqtt, &facts.config.broker);
    let quota = &facts.config.quotas.tenant;
    let caps = [
        ("mqtt.max_sessions", mqtt.max_sessions, quota.sessions),
        (
            "mqtt.max_shared_groups",
            mqtt.max_shared_groups.into(),
            quota.shared_groups,
        ),
        ("mqtt.max_retained", mqtt.max_retained, quota.retained),
        (
            "broker.max_connections",
            broker.max_connections,
            quota.connections,
        ),
    ];
    let left_open = caps.into_iter().filter(|(_, _, quota)| quota.is_none());
    let half = |(key, cap, _): (&str, u32, Option<u32>)| {
        at(
            key,
            format!(
                "{cap} is the total; one tenant (one user, if the ACL has no `tenant` line) gets at most {} unless a setting of \
                 `quotas.tenant` says otherwise",
                cap.div_ceil(2)
            ),
        )
    };
    let mut found: Vec<Finding> = left_open.map(half).collect();
    if quota.retained_bytes.is_none() {
        found.push(at(
            "mqtt.max_retained_bytes",
            format!(
                "{} is the total; one tenant gets at most half of it unless quotas.tenant.retained_bytes says otherwise",
                mqtt.max_retained_bytes
            ),
        ));
    }
    if quota.session_bytes.is_none() {
        found.push(at(
            "mqtt.max_session_bytes",
            format!(
                "{} is the total for filters and wills of all sessions, which had no limit; one tenant gets at most half of it unless \
                 quotas.tenant.session_bytes says otherwise",
                mqtt.max_session_bytes
            ),
        ));
    }
    found
}

fn flight_shares(facts: &Facts<'_>) -> Vec<Finding> {
    let flight = &facts.config.flight;
    if !facts.has_users() || flight.max_reads_per_user.is_some() {
        return Vec::new();
    }
    let reads = flight.max_reads;
    vec![at(
        "flight.max_reads",
        format!(
            "{reads} reads is the total; one user gets {} of them, and a reader that takes nothing for a while loses its slot",
            (reads / 2).max(1)
        ),
    )]
}

fn records(facts: &Facts<'_>) -> Vec<Finding> {
    let (largest, message) = (
        facts.config.mqtt.max_packet_bytes,
        facts.config.flight.max_message_bytes,
    );
    if largest >= message || facts.config.flight.max_record_bytes.is_some() {
        return Vec::new();
    }
    vec![at(
        "flight.max_message_bytes",
        format!(
            "a message may have {message}, but a record in it at most flight.max_record_bytes, which is mqtt.max_packet_bytes ({largest}) \
             unless you set it, and its topic has to obey the limits of MQTT"
        ),
    )]
}

fn doors(facts: &Facts<'_>) -> Vec<Finding> {
    let mut services = facts.config.listeners.addresses().filter(|(key, bind)| {
        let is_service = ["listeners.flight.bind", "listeners.admin.bind"].contains(key);
        is_service && !bind.ip().is_loopback()
    });
    let Some((key, _)) = services.next() else {
        return Vec::new();
    };
    vec![at(
        key,
        "connections are limited, in total and per user, and a connection without a call in time is closed: many executors or dashboards may need higher \
         limits (flight.max_connections, admin.max_connections)",
    )]
}

fn waiting(facts: &Facts<'_>) -> Vec<Finding> {
    if !facts.has_users() {
        return Vec::new();
    }
    let places = facts.config.auth.max_waiting;
    vec![at(
        "auth.max_waiting",
        format!(
            "{places} is the total; each address and each listener gets a share, so that a flood at one does not lock out the others"
        ),
    )]
}

fn hosts(facts: &Facts<'_>) -> Vec<Finding> {
    let admin = facts.config.listeners.admin.bind;
    if !facts.config.admin.hosts.is_empty() {
        return Vec::new();
    }
    vec![at(
        "listeners.admin.bind",
        format!(
            "requests to {admin} are accepted if their `Host` is an IP address, localhost or the machine's name: add other names, such as that of a \
             reverse proxy, to admin.hosts (/healthz, /readyz and /metrics accept any)"
        ),
    )]
}

fn origins(facts: &Facts<'_>) -> Vec<Finding> {
    let listeners = &facts.config.listeners;
    let sockets = [
        ("listeners.ws", &listeners.ws.bind, &listeners.ws.origins),
        ("listeners.wss", &listeners.wss.bind, &listeners.wss.origins),
    ];
    let bound = sockets
        .into_iter()
        .filter(|(_, binds, origins)| !binds.0.is_empty() && origins.is_empty());
    bound
        .map(|(listener, _, _)| {
            at(
                format!("{listener}.bind"),
                format!(
                    "a page from another host is refused if it shows neither password nor token: add its origin to {listener}.origins"
                ),
            )
        })
        .collect()
}
