//! EBS direct: snapshots that are written and read block by block.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::region::objects::Snapshot;
use crate::region::region::Ec2;
use crate::region::tags::Tags;
use crate::region::work::Step;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};

const BLOCK_SIZE: usize = 524_288;
/// Blocks of a GiB.
const BLOCKS_PER_GIB: u32 = 2048;

impl Ec2<'_> {
    pub fn ebs(&mut self, call: &Call) -> ApiResult<Response> {
        match (call.action.as_str(), &call.parts()[..]) {
            ("StartSnapshot", _) => self.start_snapshot(call),
            ("PutSnapshotBlock", [_, id, _, index]) => self.put_block(call, id, index),
            ("CompleteSnapshot", [_, _, id]) => self.complete_snapshot(call, id),
            ("ListSnapshotBlocks", [_, id, _]) => self.list_blocks(call, id),
            ("GetSnapshotBlock", [_, id, _, index]) => self.get_block(call, id, index),
            _ => Err(ApiError::new("ResourceNotFoundException", "no such operation")),
        }
    }

    fn start_snapshot(&mut self, call: &Call) -> ApiResult<Response> {
        let input: Value = serde_json::from_slice(&call.body).map_err(|error| invalid(&error.to_string()))?;
        let size = input["VolumeSize"].as_u64().and_then(|size| u32::try_from(size).ok());
        let size_gib = size.filter(|size| (1..=65536).contains(size)).ok_or_else(|| invalid("VolumeSize"))?;
        let fingerprint = input.to_string();
        let token = input["ClientToken"].as_str().map(|token| format!("StartSnapshot {token}"));
        if let Some(known) = token.as_ref().and_then(|token| self.region.tokens.get(token)) {
            if known.fingerprint != fingerprint {
                let text = "The client token was used with other parameters";
                return Err(ApiError::new("ConflictException", text));
            }
            let id = known.result[0].clone();
            self.world.stats.tokens_repeated += 1;
            return self.snapshot(&id).map(|snapshot| Response::json(201, &snapshot_json(snapshot)));
        }
        let tag = |tag: &Value| Some((tag["Key"].as_str()?.to_owned(), tag["Value"].as_str()?.to_owned()));
        let tags: Tags = input["Tags"].as_array().into_iter().flatten().filter_map(tag).collect();
        let id = self.add_snapshot("vol-ffffffff", size_gib, input["Description"].as_str().unwrap_or_default(), tags);
        if let Some(token) = token {
            let result = vec![id.clone()];
            self.region.tokens.insert(token, crate::region::region::Token { fingerprint, result });
        }
        let snapshot = self.snapshot(&id)?;
        snapshot.is_open = true;
        Ok(Response::json(201, &snapshot_json(snapshot)))
    }

    fn snapshot(&mut self, id: &str) -> ApiResult<&mut Snapshot> {
        let unknown = || ApiError::new("ResourceNotFoundException", format!("The snapshot '{id}' does not exist."));
        self.region.snapshots.get_mut(id).ok_or_else(unknown)
    }

    /// The snapshot that is being written.
    fn open_snapshot(&mut self, id: &str) -> ApiResult<&mut Snapshot> {
        let snapshot = self.snapshot(id)?;
        match snapshot.is_open {
            true => Ok(snapshot),
            false => Err(invalid("The snapshot is not in the state pending")),
        }
    }

    fn put_block(&mut self, call: &Call, id: &str, index: &str) -> ApiResult<Response> {
        let snapshot = self.open_snapshot(id)?;
        let index: u32 = index.parse().map_err(|_| invalid("the index of the block is not a number"))?;
        let length: usize = call.header("x-amz-data-length").parse().map_err(|_| invalid("x-amz-Data-Length"))?;
        let data = call.content().ok_or_else(|| invalid("The chunks are malformed"))?;
        if index >= snapshot.size_gib * BLOCKS_PER_GIB {
            return Err(invalid("The block is beyond the end of the volume"));
        }
        if length != BLOCK_SIZE || data.len() != BLOCK_SIZE {
            return Err(invalid(&format!("a block has {BLOCK_SIZE} bytes, this one {}", data.len())));
        }
        let checksum = STANDARD.encode(Sha256::digest(&data));
        if call.header("x-amz-checksum-algorithm") != "SHA256" {
            return Err(invalid("x-amz-Checksum-Algorithm must be SHA256"));
        }
        if call.header("x-amz-checksum") != checksum {
            return Err(invalid("INVALID_BLOCK: the checksum does not match the block"));
        }
        snapshot.blocks.insert(index, data);
        let response = Response::json(201, &json!({})).with("x-amz-Checksum", checksum);
        Ok(response.with("x-amz-Checksum-Algorithm", "SHA256"))
    }

    /// Completes a snapshot; repeated calls return its state.
    fn complete_snapshot(&mut self, call: &Call, id: &str) -> ApiResult<Response> {
        let changed: usize =
            call.header("x-amz-changedblockscount").parse().map_err(|_| invalid("x-amz-ChangedBlocksCount"))?;
        let snapshot_s = self.world.knobs.snapshot_s;
        let snapshot = self.snapshot(id)?;
        let (was_open, is_complete) = (snapshot.is_open, snapshot.blocks.len() == changed);
        snapshot.is_open = false;
        if was_open && !is_complete {
            snapshot.state = "error";
        }
        let status = snapshot.state;
        if was_open && is_complete {
            self.after(snapshot_s, Step::SnapshotCompleted(id.to_owned()));
        }
        Ok(Response::json(202, &json!({"Status": status})))
    }

    fn list_blocks(&mut self, call: &Call, id: &str) -> ApiResult<Response> {
        let number = |name: &str| call.parameter(name).and_then(|text| text.parse::<u32>().ok());
        let start = number("pageToken").or(number("startingBlockIndex")).unwrap_or(0);
        let limit = number("maxResults").unwrap_or(10_000).clamp(1, 10_000) as usize;
        let snapshot = self.snapshot(id)?;
        let mut blocks = snapshot.blocks.range(start..).map(|(index, _)| *index);
        let block = |index| json!({"BlockIndex": index, "BlockToken": token(index)});
        let page: Vec<Value> = blocks.by_ref().take(limit).map(block).collect();
        let mut body = json!({
            "Blocks": page, "ExpiryTime": snapshot.started_s + 604_800.0, "VolumeSize": snapshot.size_gib,
            "BlockSize": BLOCK_SIZE,
        });
        if let Some(next) = blocks.next() {
            body["NextToken"] = json!(next.to_string());
        }
        Ok(Response::json(200, &body))
    }

    fn get_block(&mut self, call: &Call, id: &str, index: &str) -> ApiResult<Response> {
        let index: u32 = index.parse().map_err(|_| invalid("the index of the block is not a number"))?;
        if call.parameter("blockToken") != Some(token(index).as_str()) {
            return Err(invalid("The block token is not valid"));
        }
        let unknown = || ApiError::new("ResourceNotFoundException", "The block does not exist");
        let data = self.snapshot(id)?.blocks.get(&index).cloned().ok_or_else(unknown)?;
        let checksum = STANDARD.encode(Sha256::digest(&data));
        let response = Response::new(200, "application/octet-stream", data);
        let response = response.with("x-amz-Data-Length", BLOCK_SIZE.to_string());
        Ok(response.with("x-amz-Checksum", checksum).with("x-amz-Checksum-Algorithm", "SHA256"))
    }
}

fn token(index: u32) -> String {
    format!("block-{index}")
}

fn invalid(text: &str) -> ApiError {
    ApiError::new("ValidationException", text)
}

fn snapshot_json(snapshot: &Snapshot) -> Value {
    let tags: Vec<Value> = snapshot.tags.iter().map(|(key, value)| json!({"Key": key, "Value": value})).collect();
    json!({
        "Description": snapshot.description, "SnapshotId": snapshot.id, "OwnerId": snapshot.owner,
        "Status": snapshot.state, "StartTime": snapshot.started_s, "VolumeSize": snapshot.size_gib,
        "BlockSize": BLOCK_SIZE, "Tags": tags,
    })
}
