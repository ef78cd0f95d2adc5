-- A ledger of schema version 6 (commit 0869243) whose coordinator was killed with open holds.
BEGIN TRANSACTION;
CREATE TABLE attempt (
  device TEXT NOT NULL, key TEXT NOT NULL, number INTEGER NOT NULL, state TEXT NOT NULL,
  hold_calls INTEGER NOT NULL, hold_tokens INTEGER NOT NULL, hold_uusd INTEGER NOT NULL,
  charged_calls INTEGER NOT NULL, charged_tokens INTEGER NOT NULL, charged_uusd INTEGER NOT NULL,
  budgets TEXT NOT NULL, epoch INTEGER NOT NULL, lease_ms INTEGER NOT NULL,
  PRIMARY KEY (device, key, number),
  CHECK (charged_calls <= hold_calls AND charged_tokens <= hold_tokens AND charged_uusd <= hold_uusd)
) STRICT, WITHOUT ROWID;
INSERT INTO "attempt" VALUES('d1','g0',1,'dispatched',1,300,900,0,0,0,'["fleet", "step[device:d1/task:math]#0"]',1,1700000060000);
INSERT INTO "attempt" VALUES('d1','k0',1,'completed',1,300,900,1,100,300,'["fleet"]',1,1700000060000);
INSERT INTO "attempt" VALUES('d1','k1',1,'completed',1,300,900,1,100,300,'["fleet"]',1,1700000060000);
INSERT INTO "attempt" VALUES('d1','k2',1,'refunded',1,300,900,0,0,0,'["fleet"]',1,1700000060000);
INSERT INTO "attempt" VALUES('d1','k3',1,'failed',1,300,900,1,300,900,'["fleet"]',1,1700000060000);
INSERT INTO "attempt" VALUES('d1','k4',1,'dispatched',1,300,900,0,0,0,'["fleet"]',1,1700000060000);
INSERT INTO "attempt" VALUES('d1','k5',1,'dispatched',1,300,900,0,0,0,'["fleet"]',1,1700000060000);
CREATE TABLE budget (
  key TEXT PRIMARY KEY,
  asked_calls INTEGER, asked_tokens INTEGER, asked_uusd INTEGER,
  limit_calls INTEGER, limit_tokens INTEGER, limit_uusd INTEGER,
  committed_calls INTEGER NOT NULL CHECK (committed_calls >= 0),
  committed_tokens INTEGER NOT NULL CHECK (committed_tokens >= 0),
  committed_uusd INTEGER NOT NULL CHECK (committed_uusd >= 0),
  reserved_calls INTEGER NOT NULL CHECK (reserved_calls >= 0),
  reserved_tokens INTEGER NOT NULL CHECK (reserved_tokens >= 0),
  reserved_uusd INTEGER NOT NULL CHECK (reserved_uusd >= 0), floor_ppm INTEGER NOT NULL DEFAULT 0, members INTEGER NOT NULL DEFAULT 0, floor_calls INTEGER NOT NULL DEFAULT 0 CHECK (floor_calls >= 0), set_aside_calls INTEGER NOT NULL DEFAULT 0 CHECK (
  set_aside_calls >= 0 AND (limit_calls IS NULL OR committed_calls + reserved_calls + set_aside_calls <= limit_calls)), floor_tokens INTEGER NOT NULL DEFAULT 0 CHECK (floor_tokens >= 0), set_aside_tokens INTEGER NOT NULL DEFAULT 0 CHECK (
  set_aside_tokens >= 0 AND (limit_tokens IS NULL OR committed_tokens + reserved_tokens + set_aside_tokens <= limit_tokens)), floor_uusd INTEGER NOT NULL DEFAULT 0 CHECK (floor_uusd >= 0), set_aside_uusd INTEGER NOT NULL DEFAULT 0 CHECK (
  set_aside_uusd >= 0 AND (limit_uusd IS NULL OR committed_uusd + reserved_uusd + set_aside_uusd <= limit_uusd)),
  CHECK (limit_calls IS NULL OR committed_calls + reserved_calls <= limit_calls),
  CHECK (limit_tokens IS NULL OR committed_tokens + reserved_tokens <= limit_tokens),
  CHECK (limit_uusd IS NULL OR committed_uusd + reserved_uusd <= limit_uusd)
) STRICT, WITHOUT ROWID;
INSERT INTO "budget" VALUES('fleet',1000,1000000,10000000,1000,1000000,10000000,3,500,1500,3,900,2700,0,0,0,0,0,0,0,0);
INSERT INTO "budget" VALUES('step[device:d1/task:math]#0',10,NULL,NULL,10,NULL,NULL,0,0,0,1,300,900,0,0,0,0,0,0,0,0);
CREATE TABLE call (
  device TEXT NOT NULL, key TEXT NOT NULL, fingerprint TEXT NOT NULL, task TEXT NOT NULL, step INTEGER NOT NULL,
  prompt_id TEXT NOT NULL, model TEXT NOT NULL, help_units INTEGER NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL,
  charged_calls INTEGER NOT NULL, charged_tokens INTEGER NOT NULL, charged_uusd INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, result TEXT, result_sha256 TEXT NOT NULL, finish TEXT NOT NULL,
  upstream_id TEXT NOT NULL, reason TEXT NOT NULL, source_key TEXT NOT NULL, cache_key TEXT NOT NULL, updated_ms INTEGER NOT NULL, beyond_text TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (device, key)
) STRICT, WITHOUT ROWID;
INSERT INTO "call" VALUES('d1','g0','content of g0','math',0,'p0','m',2,'dispatched',1,0,0,0,0,0,NULL,'','','','','','',1700000000000,'');
INSERT INTO "call" VALUES('d1','k0','content of k0','math',-1,'prompt of k0','m',2,'completed',1,1,100,300,60,40,'42','73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049','stop','up-1','','','',1700000001000,'');
INSERT INTO "call" VALUES('d1','k1','content of k1','math',-1,'prompt of k1','m',2,'completed',1,1,100,300,60,40,'42','73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049','stop','up-1','','','',1700000001000,'');
INSERT INTO "call" VALUES('d1','k2','content of k2','math',-1,'prompt of k2','m',2,'refunded',1,0,0,0,0,0,NULL,'','','','refused','','',1700000001000,'');
INSERT INTO "call" VALUES('d1','k3','content of k3','math',-1,'prompt of k3','m',2,'failed',1,1,300,900,0,0,NULL,'','','','garbage','','',1700000001000,'');
INSERT INTO "call" VALUES('d1','k4','content of k4','math',-1,'prompt of k4','m',2,'dispatched',1,0,0,0,0,0,NULL,'','','','','','',1700000000000,'');
INSERT INTO "call" VALUES('d1','k5','content of k5','math',-1,'prompt of k5','m',2,'dispatched',1,0,0,0,0,0,NULL,'','','','','','',1700000000000,'');
CREATE TABLE device (
  device TEXT PRIMARY KEY, agent_version TEXT NOT NULL, tasks TEXT NOT NULL, first_seen_ms INTEGER NOT NULL,
  last_seen_ms INTEGER NOT NULL, disabled INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "device" VALUES('d1','9.0','["math"]',1700000000000,1700000000000,0);
CREATE TABLE journal (
  seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
  previous TEXT NOT NULL, hash TEXT NOT NULL
) STRICT;
INSERT INTO "journal" VALUES(1,1700000000000,'epoch','{"epoch":1}','0000000000000000000000000000000000000000000000000000000000000000','9326593313d477dbc5ce55bcc1184772d1d6e63259f49758b3856cd178381e7d');
INSERT INTO "journal" VALUES(2,1700000000000,'task','{"device":"d1","dual":"0x1.0000000000000p-1","target_rate":"0x1.3333333333333p-2","task":"math"}','9326593313d477dbc5ce55bcc1184772d1d6e63259f49758b3856cd178381e7d','6a4e0aad5f0c4609d727739b34c529119a321ae6b0697df7ca63878bb01d6e3e');
INSERT INTO "journal" VALUES(3,1700000000000,'open_step','{"call_credit":10,"device":"d1","dual":"0x1.0000000000000p-1","dual_lr":"0x1.47ae147ae147bp-6","group_size":8,"planned_prompts":16,"step":0,"target_rate":"0x1.3333333333333p-2","task":"math","version":1}','6a4e0aad5f0c4609d727739b34c529119a321ae6b0697df7ca63878bb01d6e3e','b27eb53277df2c1d09331f8ebfcca15f964ca3edaef2270b6120a61459ee77f4');
INSERT INTO "journal" VALUES(4,1700000000000,'device','{"device":"d1","disabled":false}','b27eb53277df2c1d09331f8ebfcca15f964ca3edaef2270b6120a61459ee77f4','640609a6df0ddd96ed3b3d01f70e04ed1becc08623db68f63793145684b742b8');
INSERT INTO "journal" VALUES(5,1700000000000,'limits','{"asked":[1000,1000000,10000000],"budget":"fleet","limits":[1000,1000000,10000000]}','640609a6df0ddd96ed3b3d01f70e04ed1becc08623db68f63793145684b742b8','758e455c22a55339dc5592ed9745d56889ef4dc34a53e05891f07ae19974c238');
INSERT INTO "journal" VALUES(6,1700000000000,'reserve','{"attempt":1,"budgets":["fleet"],"cache_key":"","device":"d1","epoch":1,"fingerprint":"content of k0","help_units":2,"hold":[1,300,900],"key":"k0","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of k0","step":-1,"task":"math","version":2}','758e455c22a55339dc5592ed9745d56889ef4dc34a53e05891f07ae19974c238','3961fdef00caf57f774419ac3f32deda681090ae01e89479f4d3bb1fbba47999');
INSERT INTO "journal" VALUES(7,1700000000000,'reserve','{"attempt":1,"budgets":["fleet"],"cache_key":"","device":"d1","epoch":1,"fingerprint":"content of k1","help_units":2,"hold":[1,300,900],"key":"k1","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of k1","step":-1,"task":"math","version":3}','3961fdef00caf57f774419ac3f32deda681090ae01e89479f4d3bb1fbba47999','7dacdc700db565f46191a682a5183f9856dfd183297d3fa3d59ab2075fba3895');
INSERT INTO "journal" VALUES(8,1700000000000,'reserve','{"attempt":1,"budgets":["fleet"],"cache_key":"","device":"d1","epoch":1,"fingerprint":"content of k2","help_units":2,"hold":[1,300,900],"key":"k2","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of k2","step":-1,"task":"math","version":4}','7dacdc700db565f46191a682a5183f9856dfd183297d3fa3d59ab2075fba3895','0d68f52e99e8a7f6e45c9ee447cde66bee9a3f3ab99c93117e3ff2ae660e5473');
INSERT INTO "journal" VALUES(9,1700000000000,'reserve','{"attempt":1,"budgets":["fleet"],"cache_key":"","device":"d1","epoch":1,"fingerprint":"content of k3","help_units":2,"hold":[1,300,900],"key":"k3","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of k3","step":-1,"task":"math","version":5}','0d68f52e99e8a7f6e45c9ee447cde66bee9a3f3ab99c93117e3ff2ae660e5473','0a793df5e44f965a4e084e77bd7bbd03c9b86621c8381e722665355bd5fe434a');
INSERT INTO "journal" VALUES(10,1700000000000,'reserve','{"attempt":1,"budgets":["fleet"],"cache_key":"","device":"d1","epoch":1,"fingerprint":"content of k4","help_units":2,"hold":[1,300,900],"key":"k4","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of k4","step":-1,"task":"math","version":6}','0a793df5e44f965a4e084e77bd7bbd03c9b86621c8381e722665355bd5fe434a','0ebd6c07e315a1a59c0884da48098f56f6c56245c2d4adb11302115d15c48de2');
INSERT INTO "journal" VALUES(11,1700000000000,'reserve','{"attempt":1,"budgets":["fleet"],"cache_key":"","device":"d1","epoch":1,"fingerprint":"content of k5","help_units":2,"hold":[1,300,900],"key":"k5","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of k5","step":-1,"task":"math","version":7}','0ebd6c07e315a1a59c0884da48098f56f6c56245c2d4adb11302115d15c48de2','6823b64e87705165dddd1303c951dc3a8a29bbfecba757c992fe180339dcc421');
INSERT INTO "journal" VALUES(12,1700000000000,'reserve','{"attempt":1,"budgets":["fleet","step[device:d1/task:math]#0"],"cache_key":"","device":"d1","epoch":1,"fingerprint":"content of g0","help_units":2,"hold":[1,300,900],"key":"g0","lease_ms":1700000060000,"model":"m","prompt_id":"p0","step":0,"task":"math","version":8}','6823b64e87705165dddd1303c951dc3a8a29bbfecba757c992fe180339dcc421','845049d17e45469a7105885417d52a0fc0bd2ac9e6e212a0ea6301df3f4c6d6f');
INSERT INTO "journal" VALUES(13,1700000001000,'completed','{"attempt":1,"charge":[1,100,300],"device":"d1","finish":"stop","input_tokens":60,"key":"k0","output_tokens":40,"reason":"","result_sha256":"73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049","upstream_id":"up-1","version":9}','845049d17e45469a7105885417d52a0fc0bd2ac9e6e212a0ea6301df3f4c6d6f','4e1a66b17c54eb29e2d18382221a0e694b202deb7c962ea57cca3b2189e1429f');
INSERT INTO "journal" VALUES(14,1700000001000,'completed','{"attempt":1,"charge":[1,100,300],"device":"d1","finish":"stop","input_tokens":60,"key":"k1","output_tokens":40,"reason":"","result_sha256":"73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049","upstream_id":"up-1","version":10}','4e1a66b17c54eb29e2d18382221a0e694b202deb7c962ea57cca3b2189e1429f','14bd29c7527f7ba9af435e0380a54c727f7048aedf008f9ec6dfef2dc0b9af0a');
INSERT INTO "journal" VALUES(15,1700000001000,'refunded','{"attempt":1,"charge":[0,0,0],"device":"d1","key":"k2","reason":"refused","version":11}','14bd29c7527f7ba9af435e0380a54c727f7048aedf008f9ec6dfef2dc0b9af0a','ec0720ac98b37c3edab3441d6313082aafa4b3836f17ce92ad29d205fb5f7cdc');
INSERT INTO "journal" VALUES(16,1700000001000,'failed','{"attempt":1,"charge":[1,300,900],"device":"d1","key":"k3","reason":"garbage","version":12}','ec0720ac98b37c3edab3441d6313082aafa4b3836f17ce92ad29d205fb5f7cdc','4d9c7e6dbe0f4ad7b36ab128f2b9f8f56903b10f1bd6d8cd595d92ce424cca4c');
INSERT INTO "journal" VALUES(17,1700000000000,'set_limits','{"changes":[["calls_limit",50]],"scope":"device","version":1}','4d9c7e6dbe0f4ad7b36ab128f2b9f8f56903b10f1bd6d8cd595d92ce424cca4c','044c3cba6c97ce7b76833e23dbae8ffee6a7234543793644677dbdf648bd8348');
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO "meta" VALUES('epoch',1);
INSERT INTO "meta" VALUES('stopped_cleanly',0);
CREATE TABLE price (
  key TEXT PRIMARY KEY, dual TEXT NOT NULL, updates INTEGER NOT NULL, units INTEGER NOT NULL CHECK (units >= 0)
, recent TEXT NOT NULL DEFAULT '') STRICT, WITHOUT ROWID;
CREATE TABLE price_member (
  price TEXT NOT NULL, device TEXT NOT NULL, units INTEGER NOT NULL CHECK (units >= 0), seen_ms INTEGER NOT NULL,
  PRIMARY KEY (price, device)
) STRICT, WITHOUT ROWID;
CREATE TABLE set_limits (scope TEXT PRIMARY KEY, changes TEXT NOT NULL, version INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO "set_limits" VALUES('device','[["calls_limit", 50]]',1);
CREATE TABLE step (
  device TEXT NOT NULL, task TEXT NOT NULL, step INTEGER NOT NULL, planned_prompts INTEGER NOT NULL, group_size INTEGER NOT NULL,
  dual TEXT NOT NULL, target_rate TEXT NOT NULL, dual_lr TEXT NOT NULL, call_credit INTEGER, closed INTEGER NOT NULL,
  total_units INTEGER NOT NULL, help_units INTEGER NOT NULL, dual_after TEXT NOT NULL, assist_rate TEXT NOT NULL,
  discrepancies TEXT NOT NULL, price TEXT NOT NULL DEFAULT '', dual_before TEXT NOT NULL DEFAULT '0x0.0p+0', round_units INTEGER NOT NULL DEFAULT 0, dual_proportional TEXT NOT NULL DEFAULT '0x0.0p+0', dual_window INTEGER NOT NULL DEFAULT 1, dual_ceiling TEXT NOT NULL DEFAULT 'inf',
  PRIMARY KEY (device, task, step)
) STRICT, WITHOUT ROWID;
INSERT INTO "step" VALUES('d1','math',0,16,8,'0x1.0000000000000p-1','0x1.3333333333333p-2','0x1.47ae147ae147bp-6',10,0,0,0,'0x0.0p+0','0x0.0p+0','[]','','0x0.0p+0',0,'0x0.0p+0',1,'inf');
CREATE TABLE task_state (
  device TEXT NOT NULL, task TEXT NOT NULL, dual TEXT NOT NULL, target_rate TEXT NOT NULL, next_step INTEGER NOT NULL,
  version INTEGER NOT NULL, charged_calls INTEGER NOT NULL, charged_tokens INTEGER NOT NULL, charged_uusd INTEGER NOT NULL, price TEXT NOT NULL DEFAULT '', recent TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (device, task)
) STRICT, WITHOUT ROWID;
INSERT INTO "task_state" VALUES('d1','math','0x1.0000000000000p-1','0x1.3333333333333p-2',0,12,3,500,1500,'','');
CREATE INDEX call_by_cache_key ON call (cache_key, updated_ms)
  WHERE state = 'completed' AND result IS NOT NULL AND source_key = '' AND cache_key <> '';
CREATE INDEX call_with_result ON call (updated_ms) WHERE result IS NOT NULL;
CREATE INDEX attempt_open ON attempt (lease_ms) WHERE state = 'dispatched';
CREATE TRIGGER journal_keeps BEFORE UPDATE ON journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER journal_stays BEFORE DELETE ON journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE INDEX price_member_seen ON price_member (seen_ms) WHERE units > 0;
CREATE INDEX call_by_step ON call (device, task, step, prompt_id);
COMMIT;
PRAGMA user_version = 6;
