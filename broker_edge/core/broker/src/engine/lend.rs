//! The owners of each borrow list.

/// Lends owners to a borrow list, from the engine or from a list with more owners.
macro_rules! lend {
    ($from:expr => OwnRecords) => {
        lend!($from => OwnRecords: clients, routing, ingest, observe, effects)
    };
    ($from:expr => Membership) => {
        lend!($from => Membership: groups, clients, routing, quotas, observe)
    };
    ($from:expr => Sender) => {
        lend!($from => Sender: groups, clients, store, observe)
    };
    ($from:expr => Replies) => {
        lend!($from => Replies: clients, ingest, store, observe, effects)
    };
    ($from:expr => Acknowledging) => {
        lend!($from => Acknowledging: clients, routing, ingest, qos2, groups, store, catch_up, observe, effects)
    };
    ($from:expr => Publishing) => {
        lend!($from => Publishing: protocol, clients, routing, ingest, qos2, groups, retained, store, catch_up, quotas, observe, effects)
    };
    ($from:expr => Subscribing) => {
        lend!($from => Subscribing: clients, routing, ingest, delivery, catch_up, groups, retained, store, quotas, observe, effects)
    };
    ($from:expr => Lifecycle) => {
        lend!($from => Lifecycle: clients, routing, ingest, delivery, catch_up, qos2, groups, retained, store, quotas, observe, effects)
    };
    ($from:expr => Receiving) => {
        lend!($from => Receiving: protocol, clients, routing, ingest, delivery, catch_up, qos2, groups, retained, store, quotas, observe, effects)
    };
    ($from:expr => Dispatching) => {
        lend!($from => Dispatching: delivery, routing, groups, retained, quotas, clients, store, observe, effects)
    };
    ($from:expr => CatchingUp) => {
        lend!($from => CatchingUp: catch_up, delivery, routing, groups, retained, clients, store, observe, effects)
    };
    ($from:expr => Checkpointing) => {
        Checkpointing {
            env: &$from.env,
            live: $from.delivery.live(),
            store: &mut $from.store,
            clients: &mut $from.clients,
            groups: &mut $from.groups,
            quotas: &mut $from.quotas,
            routing: &mut $from.routing,
            ingest: &mut $from.ingest,
            observe: &mut $from.observe,
            effects: &mut $from.effects,
        }
    };
    ($from:expr => AuthUpdates) => {
        lend!($from => AuthUpdates: protocol, clients, routing, groups, quotas, effects)
    };
    ($from:expr => SysTopics) => {
        lend!($from => SysTopics: clients, routing, groups, retained, observe, effects)
    };
    ($from:expr => ClientsView) => {
        lend!($from => ClientsView, to read: clients, delivery)
    };
    ($from:expr => Usage) => {
        lend!($from => Usage, to read: clients, routing, groups, quotas)
    };
    ($from:expr => $list:ident, to read: $($owner:ident),*) => {
        $list { env: &$from.env, $($owner: &$from.$owner),* }
    };
    ($from:expr => $list:ident: $($owner:ident),*) => {
        $list { env: &$from.env, $($owner: &mut $from.$owner),* }
    };
}
