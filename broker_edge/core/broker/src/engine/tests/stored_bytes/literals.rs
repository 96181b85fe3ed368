//! The stored values of two sessions that have state of every kind.

/// Every key in the state, in order, with its value.
pub(in crate::engine) const STORED: [(&str, &str); 13] = [
    (
        "cursor/c",
        concat!(
            r#"{"cursors":{"artifacts-0":0,"control-0":0,"telemetry-0":5},"#,
            r#""replays":{"old":{"telemetry-0":0}},"joined":["old"]}"#,
        ),
    ),
    (
        "cursor/d",
        concat!(
            r#"{"cursors":{"artifacts-0":0,"control-0":0,"telemetry-0":14},"#,
            r#""replays":{"replayed":{"telemetry-0":10}},"joined":["replayed"]}"#,
        ),
    ),
    (
        "cursor/n",
        r#"{"cursors":{"artifacts-0":0,"control-0":0,"telemetry-0":14}}"#,
    ),
    (
        "mark/received",
        r#"{"applied":{"artifacts-0":0,"control-0":0,"telemetry-0":14}}"#,
    ),
    ("received/c", r#"{"applied":{"telemetry-0":14},"held":[7]}"#),
    (
        "sent/c",
        r#"{"assigned":{"telemetry-0":[6,8]},"flights":[[5,3,6,0,"c"],[6,3,7,1,"c"]]}"#,
    ),
    (
        "sent/d",
        concat!(
            r#"{"assigned":{},"replays":{"replayed":{"telemetry-0":[10,11]}},"flights":["#,
            r#"[1,3,10,0,{"replay":"replayed"}],[2,3,11,0,"r"],[3,3,12,0,{"share":"$share/g/shared"}],"#,
            r#"[4,3,13,0,{"share":"$share/g/left"}]]}"#,
        ),
    ),
    (
        "session/c",
        concat!(
            r#"{"expiry_s":3600,"away_since_us":1700000000000000,"life":1099511627778,"subscriptions":["#,
            r#"{"filter":"t/+","qos":2,"no_local":true,"retain_as_published":true,"retain_handling":1,"id":7,"#,
            r#""since":{"artifacts-0":0,"control-0":0,"telemetry-0":2}},"#,
            r#"{"filter":"$share/g/s","qos":1,"retain_handling":0,"id":0,"since":{}},"#,
            r#"{"filter":"old","qos":1,"retain_handling":0,"id":0,"offsets":true,"since":{"telemetry-0":8}}]}"#,
        ),
    ),
    (
        "session/d",
        concat!(
            r#"{"expiry_s":3600,"away_since_us":1700000000000000,"life":1099511627779,"subscriptions":["#,
            r#"{"filter":"replayed","qos":2,"retain_handling":0,"id":0,"offsets":true,"since":{"telemetry-0":12}},"#,
            r#"{"filter":"retained","qos":2,"retain_handling":0,"id":0,"since":{"telemetry-0":12}},"#,
            r#"{"filter":"$share/g/shared","qos":2,"retain_handling":0,"id":0,"since":{}}]}"#,
        ),
    ),
    (
        "session/n",
        r#"{"expiry_s":null,"away_since_us":null,"life":1099511627780,"subscriptions":[]}"#,
    ),
    (
        "share/g/s",
        r#"{"places":{"telemetry-0":{"low":2,"done":[1,1,1,9]}}}"#,
    ),
    ("share/g/shared", r#"{"places":{"telemetry-0":{"low":14}}}"#),
    (
        "will/c",
        concat!(
            r#"{"due_us":1700000030000000,"token":"will/10000000002/60a2419e80380","topic":"w","qos":1,"#,
            r#""retain":true,"properties":"03000474657874","payload":"676f6e65"}"#,
        ),
    ),
];

/// The session of a user with a tenant, which is in a group from the beginning of the history, and the group.
pub(in crate::engine) const SHARED_SESSION: (&str, &str) = (
    "session/a",
    concat!(
        r#"{"expiry_s":3600,"away_since_us":1700000000000000,"life":1099511627778,"user":"ann","#,
        r#""subscriptions":[{"filter":"$share/g/t","tenant":"north","qos":1,"retain_handling":0,"id":0,"#,
        r#""offsets":true,"since":{}}]}"#,
    ),
);
pub(in crate::engine) const SHARED_GROUP: (&str, &str) = (
    "share/+6e6f727468+g/t",
    r#"{"places":{"telemetry-0":{"low":0}},"past":{"telemetry-0":1}}"#,
);

/// A retained message; its time is the clock's.
pub(in crate::engine) const RETAINED: (&str, &str) = (
    "retained/a/b",
    concat!(
        r#"{"partition":3,"offset":0,"time_us":0,"client_id":"p","qos":1,"#,
        r#""properties":"03000474657874","payload":"6b657074"}"#,
    ),
);
