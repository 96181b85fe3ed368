//! A Flight client that shows credentials.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, BinaryArray, BooleanArray, RecordBatch, StringArray};
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, FlightDescriptor, Ticket};
use futures::{StreamExt, TryStreamExt, stream};
use headwater_broker::Broker;
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

pub struct Flight {
    pub service: FlightServiceClient<Channel>,
    pub authorization: Option<String>,
}

impl Flight {
    pub async fn open(broker: &Broker, authorization: Option<String>) -> Flight {
        let address = format!("http://{}", broker.flight_address());
        let channel = Channel::from_shared(address)
            .unwrap()
            .connect()
            .await
            .unwrap();
        Flight {
            service: FlightServiceClient::new(channel),
            authorization,
        }
    }

    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(value) = &self.authorization {
            request
                .metadata_mut()
                .insert("authorization", value.parse().unwrap());
        }
        request
    }

    pub async fn act(&mut self, name: &str, body: Value) -> Result<Vec<Value>, Status> {
        let request = self.request(Action::new(name, body.to_string()));
        let answer = self.service.do_action(request).await?.into_inner();
        let results: Vec<arrow_flight::Result> = answer.try_collect().await?;
        Ok(results
            .iter()
            .map(|one| serde_json::from_slice(&one.body).unwrap())
            .collect())
    }

    /// Publishes one record.
    pub async fn put(&mut self, topic: &str, value: &[u8]) -> Result<Value, Status> {
        self.put_as(topic, value, false).await
    }

    pub async fn put_as(
        &mut self,
        topic: &str,
        value: &[u8],
        retain: bool,
    ) -> Result<Value, Status> {
        let columns: [(&str, ArrayRef); 3] = [
            ("topic", Arc::new(StringArray::from_iter_values([topic]))),
            ("value", Arc::new(BinaryArray::from_iter_values([value]))),
            ("retain", Arc::new(BooleanArray::from(vec![retain]))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let messages = FlightDataEncoderBuilder::new()
            .with_max_flight_data_size(usize::MAX)
            .with_flight_descriptor(Some(FlightDescriptor::new_cmd(r#"{"op": "produce"}"#)))
            .build(stream::iter([Ok(batch)]))
            .map(|message| message.unwrap());
        let request = self.request(messages);
        let answers = self.service.do_put(request).await?.into_inner();
        let answers: Vec<_> = answers.try_collect().await?;
        Ok(serde_json::from_slice(&answers.last().unwrap().app_metadata).unwrap())
    }

    /// The values of a topic, as JSON.
    pub async fn values(&mut self, topic: &str) -> Vec<Value> {
        let filter = json!({"filters": [topic]});
        let found = self.act("topics", filter).await.unwrap()[0]["topics"][0].clone();
        let ticket = json!({
            "partition": found["partition"], "start": found["first"], "end": found["next"], "filters": [topic],
        });
        let request = self.request(Ticket::new(ticket.to_string()));
        let messages = self.service.do_get(request).await.unwrap().into_inner();
        let messages = messages.map_err(|status| FlightError::Tonic(Box::new(status)));
        let batches = FlightRecordBatchStream::new_from_flight_data(messages);
        let batches: Vec<RecordBatch> = batches.try_collect().await.unwrap();
        let values = batches.iter().flat_map(|batch| {
            let values = batch.column_by_name("value").unwrap().as_binary::<i32>();
            values
                .iter()
                .map(|value| serde_json::from_slice(value.unwrap()).unwrap())
        });
        values.collect()
    }

    pub async fn code(&mut self, name: &str, body: Value) -> Code {
        self.act(name, body)
            .await
            .map_or_else(|status| status.code(), |_| Code::Ok)
    }

    /// The number of rows that a ticket returns.
    pub async fn rows(&mut self, ticket: Value) -> Result<usize, Status> {
        let request = self.request(Ticket::new(ticket.to_string()));
        let messages = self.service.do_get(request).await?.into_inner();
        let messages = messages.map_err(|status| FlightError::Tonic(Box::new(status)));
        let batches = FlightRecordBatchStream::new_from_flight_data(messages);
        let counts = batches
            .map_ok(|batch| batch.num_rows())
            .try_collect::<Vec<_>>()
            .await;
        counts
            .map(|counts| counts.iter().sum())
            .map_err(|error| match error {
                FlightError::Tonic(status) => *status,
                other => Status::internal(other.to_string()),
            })
    }

    pub async fn topics(&mut self) -> Result<Vec<String>, Status> {
        let answer = self.act("topics", json!({})).await?;
        let rows = answer[0]["topics"].as_array().unwrap().clone();
        Ok(rows
            .iter()
            .map(|row| row["topic"].as_str().unwrap().to_owned())
            .collect())
    }
}

/// A channel from a chosen address of this machine.
pub async fn flight_from(broker: &Broker, site: u8, authorization: String) -> Flight {
    let address = format!("http://{}", broker.flight_address());
    let local = std::net::IpAddr::from([127, 0, 0, site]);
    let channel = Channel::from_shared(address)
        .unwrap()
        .local_address(Some(local))
        .connect()
        .await
        .unwrap();
    Flight {
        service: FlightServiceClient::new(channel),
        authorization: Some(authorization),
    }
}
