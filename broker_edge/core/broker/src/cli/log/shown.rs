//! Formats the output of the log tools: reports as text, records as JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use headwater_log::RecordView;
use headwater_log::tools::{
    BackupReport, Dumped, PartitionCheck, PurgeReport, RepairReport, RestoreReport, VerifyReport,
};
use serde_json::{Value, json};

pub fn verify_text(report: &VerifyReport) -> String {
    let mut text = format!("log {}, format {}\n", report.log_id, report.format);
    if !report.complete {
        text.push_str(
            "a process has the log open: the newest segment of each partition was skipped\n",
        );
    }
    if let Some(meta) = &report.meta {
        text.push_str(&format!("log.meta: {meta}\n"));
    }
    for check in &report.partitions {
        text.push_str(&partition_text(check));
    }
    let (segments, bytes) = report.read();
    text.push_str(&match (report.is_damaged(), report.has_read()) {
        (true, _) => "damage found\n".to_owned(),
        (false, true) => format!("no damage found in {segments} segments, {bytes} bytes\n"),
        (false, false) => "nothing was read: the broker that has the log open writes the only segment of each partition; \
                           stop it, or verify a backup\n"
            .to_owned(),
    });
    text
}

fn partition_text(check: &PartitionCheck) -> String {
    let mut text = format!(
        "{}: {} records in {} segments, offsets [{}, {}), {} bytes, epochs {} to {}\n",
        check.name,
        check.records,
        check.segments,
        check.log_start,
        check.next_offset,
        check.bytes,
        check.first_epoch,
        check.last_epoch
    );
    for gap in &check.gaps {
        text.push_str(&format!(
            "  offsets [{}, {}) are lost ({}): {} at byte {}, {} bytes\n",
            gap.start, gap.end, gap.reason, gap.file, gap.position, gap.bytes
        ));
    }
    for flaw in &check.flaws {
        text.push_str(&format!("  {flaw}\n"));
    }
    for index in &check.indexes {
        text.push_str(&format!("  {index}: will be rebuilt at the next start\n"));
    }
    if check.torn_bytes > 0 {
        text.push_str(&format!(
            "  {} bytes of an unfinished write\n",
            check.torn_bytes
        ));
    }
    if check.kept_aside > 0 {
        text.push_str(&format!("  {} quarantined files\n", check.kept_aside));
    }
    text
}

pub fn dumped(line: &Dumped<'_>) -> Value {
    match line {
        Dumped::Lost {
            partition,
            name,
            offsets,
        } => json!({
            "partition": partition.0, "name": name,
            "lost": {"start": offsets.start.0, "end": offsets.end.0},
        }),
        Dumped::Record {
            partition,
            name,
            record,
        } => {
            let mut value = record_json(record);
            value["partition"] = json!(partition.0);
            value["name"] = json!(name);
            value
        }
    }
}

fn record_json(record: &RecordView<'_>) -> Value {
    let mut value = json!({
        "offset": record.offset.0,
        "epoch": record.epoch.0,
        "time_us": record.time_us,
        "topic": record.topic,
        "client_id": record.client_id,
        "qos": record.qos,
        "retain": record.retain,
    });
    put_bytes(&mut value, "key", record.key);
    put_bytes(&mut value, "value", record.payload);
    if record.purged {
        value["purged"] = json!(true);
    }
    if let Some(key) = record.idempotency_key {
        value["idempotency_key"] = json!(key);
    }
    if !record.properties.is_empty() {
        value["properties_base64"] = json!(base64(record.properties));
    }
    let headers: Vec<Value> = record
        .headers
        .map(|(name, bytes)| {
            let mut header = json!({"name": name});
            put_bytes(&mut header, "value", bytes);
            header
        })
        .collect();
    if !headers.is_empty() {
        value["headers"] = json!(headers);
    }
    value
}

/// As text if it is UTF-8, otherwise as `<name>_base64`.
fn put_bytes(value: &mut Value, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => value[name] = json!(text),
        Err(_) => value[format!("{name}_base64")] = json!(base64(bytes)),
    }
}

fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub fn repair_text(report: &RepairReport) -> String {
    let mut text = String::new();
    for action in &report.actions {
        let would = if report.dry_run { "would " } else { "" };
        text.push_str(&format!("{would}{action}\n"));
    }
    if report.actions.is_empty() {
        text.push_str("nothing to repair\n");
    }
    if let Some(after) = &report.after {
        after
            .partitions
            .iter()
            .for_each(|check| text.push_str(&partition_text(check)));
    }
    text
}

pub fn backup_text(report: &BackupReport) -> String {
    let mut text = String::new();
    for one in &report.partitions {
        let (name, start, end) = (&one.name, one.log_start, one.high_watermark);
        text.push_str(&format!("{name}: offsets [{start}, {end})\n"));
        for (start, end) in &one.damaged {
            text.push_str(&format!(
                "  offsets [{start}, {end}) are damaged and not in the backup\n"
            ));
        }
    }
    text.push_str(&format!(
        "{} segments copied ({} bytes), {} already in the backup\n",
        report.copied, report.copied_bytes, report.reused
    ));
    text
}

pub fn restore_text(report: &RestoreReport) -> String {
    let mut text = String::new();
    for (name, start, end) in &report.partitions {
        text.push_str(&format!("{name}: offsets [{start}, {end})\n"));
    }
    text.push_str(&format!(
        "restored {} records of log {} as log {} in {}\n",
        report.records,
        report.source_log_id,
        report.log_id,
        report.dir.display()
    ));
    text
}

pub fn purge_text(report: &PurgeReport) -> String {
    let mut text = String::new();
    for (name, records) in report.partitions.iter().filter(|(_, records)| *records > 0) {
        text.push_str(&format!("{name}: {records} records purged\n"));
    }
    text.push_str(&format!(
        "{} records purged, {} segments rewritten, {} quarantined files removed\n",
        report.records, report.segments, report.removed_files
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn bytes_that_are_no_text_are_base64() {
        assert_eq!(base64(b""), "");
        assert_eq!(base64(&[0xff]), "/w==");
        assert_eq!(base64(&[0xff, 0]), "/wA=");
        assert_eq!(base64(b"headwater"), "aGVhZHdhdGVy");
    }
}
