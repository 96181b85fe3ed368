//! A broker on free ports with its own folder, and a plain Flight client.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, StringArray};
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, FlightData, FlightDescriptor, Ticket};
use futures::{StreamExt, TryStreamExt, stream};
use headwater_broker::Broker;
use headwater_broker::config::{Config, Source};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Code, Status};

pub use crate::common::DEADLINE;
use crate::common::http::text;

/// A broker that a test owns. It may be restarted on the same folder.
pub struct TestBroker {
    pub dir: TempDir,
    set: Vec<String>,
    broker: Option<Broker>,
}

impl TestBroker {
    pub fn start(set: &[&str]) -> TestBroker {
        let dir = tempfile::tempdir().expect("a folder for the log");
        let set = set.iter().map(|text| (*text).to_owned()).collect();
        let mut broker = TestBroker {
            dir,
            set,
            broker: None,
        };
        broker.restart();
        broker
    }

    pub fn stop(&mut self) {
        self.broker.take().into_iter().for_each(Broker::shutdown);
    }

    /// Stops the broker, if it runs, and starts it on the same folder.
    pub fn restart(&mut self) {
        self.stop();
        self.broker = Some(Broker::start(self.config(&[])).expect("the broker starts"));
    }

    /// The settings of this broker, changed by `more`.
    pub fn config(&self, more: &[&str]) -> Config {
        let mut set = vec![
            format!("data_dir={}", self.dir.path().join("log").display()),
            "listeners.mqtt.bind=127.0.0.1:0".to_owned(),
            "listeners.flight.bind=127.0.0.1:0".to_owned(),
            "listeners.admin.bind=127.0.0.1:0".to_owned(),
            "log.segment_bytes=256KiB".to_owned(),
            "log.tail_bytes=1MiB".to_owned(),
        ];
        set.extend(self.set.iter().cloned());
        set.extend(more.iter().map(|text| (*text).to_owned()));
        Config::load(&Source {
            set,
            ..Source::default()
        })
        .expect("the settings of a test are valid")
    }

    pub fn broker(&self) -> &Broker {
        self.broker.as_ref().expect("the broker runs")
    }

    pub fn broker_mut(&mut self) -> &mut Broker {
        self.broker.as_mut().expect("the broker runs")
    }

    pub async fn client(&self) -> Client {
        let address = format!("http://{}", self.broker().flight_address());
        let channel = Channel::from_shared(address)
            .expect("an address")
            .connect()
            .await
            .expect("Flight accepts");
        Client {
            service: FlightServiceClient::new(channel).max_decoding_message_size(usize::MAX),
        }
    }

    /// Status code and body of a GET from the admin listener.
    pub fn http(&self, path: &str) -> (u16, String) {
        text(self.broker().admin_address(), "GET", path)
    }
}

/// One row of the canonical schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub topic: String,
    pub partition: i32,
    pub offset: u64,
    pub timestamp: i64,
    pub headers: Option<Vec<(String, Vec<u8>)>>,
    pub log_id: String,
    pub epoch: i64,
    pub qos: i8,
    pub retain: bool,
    pub client_id: String,
}

/// A parsed refusal.
#[derive(Debug)]
pub struct Refused {
    pub code: Code,
    pub body: Value,
}

pub fn refused(status: &Status) -> Refused {
    let body =
        serde_json::from_str(status.message()).unwrap_or_else(|_| panic!("not JSON: {status:?}"));
    Refused {
        code: status.code(),
        body,
    }
}

/// A record as a producer sends it.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    pub topic: String,
    pub value: Vec<u8>,
    pub idempotency_key: Option<String>,
}

impl Sent {
    pub fn new(topic: &str, value: impl Into<Vec<u8>>) -> Sent {
        Sent {
            topic: topic.to_owned(),
            value: value.into(),
            idempotency_key: None,
        }
    }

    pub fn keyed(self, key: &str) -> Sent {
        Sent {
            idempotency_key: Some(key.to_owned()),
            ..self
        }
    }
}

pub struct Client {
    service: FlightServiceClient<Channel>,
}

impl Client {
    /// All results of an action.
    pub async fn results(&mut self, name: &str, body: Value) -> Result<Vec<Value>, Status> {
        let answer = self
            .service
            .do_action(Action::new(name, body.to_string()))
            .await?;
        let results: Vec<arrow_flight::Result> = answer.into_inner().try_collect().await?;
        Ok(results
            .iter()
            .map(|result| serde_json::from_slice(&result.body).expect("answers are JSON"))
            .collect())
    }

    /// The only result of an action.
    pub async fn act(&mut self, name: &str, body: Value) -> Result<Value, Status> {
        let mut results = self.results(name, body).await?;
        assert_eq!(results.len(), 1, "{name} gives one result");
        Ok(results.remove(0))
    }

    pub async fn refusal(&mut self, name: &str, body: Value) -> Refused {
        refused(
            &self
                .act(name, body)
                .await
                .expect_err("the action is refused"),
        )
    }

    /// Batches of rows, each with its position.
    pub async fn stream(
        &mut self,
        ticket: Value,
    ) -> Result<impl futures::Stream<Item = Result<(Vec<Row>, u64), Status>> + Unpin + use<>, Status>
    {
        let messages = self
            .service
            .do_get(Ticket::new(ticket.to_string()))
            .await?
            .into_inner();
        let decoder = FlightRecordBatchStream::new_from_flight_data(
            messages.map_err(|e| FlightError::Tonic(Box::new(e))),
        );
        let decoded = decoder
            .into_inner()
            .filter_map(async |message| match message {
                Ok(data) => match data.payload {
                    arrow_flight::decode::DecodedPayload::RecordBatch(batch) => {
                        let next: Value = serde_json::from_slice(&data.inner.app_metadata)
                            .expect("metadata is JSON");
                        Some(Ok((rows(&batch), next["next"].as_u64().expect("a place"))))
                    }
                    _ => None,
                },
                Err(FlightError::Tonic(status)) => Some(Err(*status)),
                Err(error) => panic!("{error}"),
            });
        Ok(Box::pin(decoded))
    }

    /// All rows of a bounded read.
    pub async fn read(&mut self, ticket: Value) -> Result<Vec<Row>, Status> {
        let batches: Vec<(Vec<Row>, u64)> = self.stream(ticket).await?.try_collect().await?;
        Ok(batches.into_iter().flat_map(|(rows, _)| rows).collect())
    }

    /// Produces the rows as one batch; returns partition, offset and a duplicate flag for each row.
    pub async fn produce(&mut self, sent: &[Sent]) -> Result<Vec<(u64, u64, bool)>, Status> {
        self.produce_batch(batch_of(sent)).await
    }

    pub async fn produce_batch(
        &mut self,
        batch: RecordBatch,
    ) -> Result<Vec<(u64, u64, bool)>, Status> {
        let messages = FlightDataEncoderBuilder::new()
            .with_flight_descriptor(Some(FlightDescriptor::new_cmd(
                json!({"op": "produce"}).to_string(),
            )))
            .build(stream::iter([Ok(batch)]))
            .map(|message| message.expect("rows encode"));
        let answers = self.service.do_put(messages).await?.into_inner();
        let answers: Vec<arrow_flight::PutResult> = answers.try_collect().await?;
        assert_eq!(answers.len(), 1, "one answer a batch");
        let answer: Value =
            serde_json::from_slice(&answers[0].app_metadata).expect("the answer is JSON");
        let column = |name: &str| answer[name].as_array().expect(name).clone();
        let places = column("partitions")
            .into_iter()
            .zip(column("offsets"))
            .zip(column("duplicates"));
        Ok(places
            .map(|((partition, offset), duplicate)| {
                (
                    partition.as_u64().unwrap(),
                    offset.as_u64().unwrap(),
                    duplicate.as_bool().unwrap(),
                )
            })
            .collect())
    }

    /// The messages of a DoPut of these rows.
    pub async fn messages_of(&self, batch: RecordBatch) -> Vec<FlightData> {
        FlightDataEncoderBuilder::new()
            .with_flight_descriptor(Some(FlightDescriptor::new_cmd(
                json!({"op": "produce"}).to_string(),
            )))
            .build(stream::iter([Ok(batch)]))
            .try_collect()
            .await
            .expect("rows encode")
    }

    /// Sends messages unchanged.
    pub async fn put(&mut self, messages: Vec<FlightData>) -> Result<(), Status> {
        let answers = self.service.do_put(stream::iter(messages)).await?;
        let answers: Result<Vec<arrow_flight::PutResult>, Status> =
            answers.into_inner().try_collect().await;
        answers.map(drop)
    }

    /// The high watermark of each partition that has records.
    pub async fn high_watermarks(&mut self) -> Vec<(u32, u64)> {
        let offsets = self.act("offsets", json!({})).await.expect("offsets");
        let partitions = offsets["partitions"].as_object().expect("partitions");
        let marks = partitions.iter().map(|(number, row)| {
            (
                number.parse().expect("a number"),
                row["high_watermark"].as_u64().expect("an offset"),
            )
        });
        let mut marks: Vec<(u32, u64)> = marks.filter(|(_, mark)| *mark > 0).collect();
        marks.sort_unstable();
        marks
    }
}

pub fn batch_of(sent: &[Sent]) -> RecordBatch {
    let topics = StringArray::from_iter_values(sent.iter().map(|sent| &sent.topic));
    let values = BinaryArray::from_iter_values(sent.iter().map(|sent| &sent.value));
    let keys: StringArray = sent
        .iter()
        .map(|sent| sent.idempotency_key.clone())
        .collect();
    let columns: [(&str, ArrayRef); 3] = [
        ("topic", Arc::new(topics)),
        ("value", Arc::new(values)),
        ("idempotency_key", Arc::new(keys)),
    ];
    RecordBatch::try_from_iter(columns).expect("columns of one length")
}

fn rows(batch: &RecordBatch) -> Vec<Row> {
    let column = |name: &str| {
        batch
            .column_by_name(name)
            .unwrap_or_else(|| panic!("column {name}"))
    };
    let headers = column("headers").as_list::<i32>();
    (0..batch.num_rows())
        .map(|row| Row {
            key: column("key").as_binary::<i32>().value(row).to_vec(),
            value: column("value").as_binary::<i32>().value(row).to_vec(),
            topic: column("topic").as_string::<i32>().value(row).to_owned(),
            partition: column("partition").as_primitive::<Int32Type>().value(row),
            offset: u64::try_from(column("offset").as_primitive::<Int64Type>().value(row))
                .expect("an offset"),
            timestamp: column("timestamp")
                .as_primitive::<TimestampMicrosecondType>()
                .value(row),
            headers: (!headers.is_null(row)).then(|| header_pairs(&headers.value(row))),
            log_id: column("log_id").as_string::<i32>().value(row).to_owned(),
            epoch: column("epoch").as_primitive::<Int64Type>().value(row),
            qos: column("qos").as_primitive::<Int8Type>().value(row),
            retain: column("retain").as_boolean().value(row),
            client_id: column("client_id").as_string::<i32>().value(row).to_owned(),
        })
        .collect()
}

fn header_pairs(items: &ArrayRef) -> Vec<(String, Vec<u8>)> {
    let items = items.as_struct();
    let (names, values) = (
        items.column(0).as_string::<i32>(),
        items.column(1).as_binary::<i32>(),
    );
    (0..names.len())
        .map(|item| (names.value(item).to_owned(), values.value(item).to_vec()))
        .collect()
}
