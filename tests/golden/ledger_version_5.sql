PRAGMA user_version = 5;
BEGIN TRANSACTION;
CREATE TABLE attempt (
  device TEXT NOT NULL, key TEXT NOT NULL, number INTEGER NOT NULL, state TEXT NOT NULL,
  hold_calls INTEGER NOT NULL, hold_tokens INTEGER NOT NULL, hold_uusd INTEGER NOT NULL,
  charged_calls INTEGER NOT NULL, charged_tokens INTEGER NOT NULL, charged_uusd INTEGER NOT NULL,
  budgets TEXT NOT NULL, epoch INTEGER NOT NULL, lease_ms INTEGER NOT NULL,
  PRIMARY KEY (device, key, number),
  CHECK (charged_calls <= hold_calls AND charged_tokens <= hold_tokens AND charged_uusd <= hold_uusd)
) STRICT, WITHOUT ROWID;
INSERT INTO "attempt" VALUES('d1','answered',1,'completed',1,300,900,1,100,900,'["fleet", "step[device:d1/task:math]#0"]',1,1700000060000);
INSERT INTO "attempt" VALUES('d1','cut',1,'in_doubt',1,300,900,1,300,900,'["fleet"]',1,1700000060000);
INSERT INTO "attempt" VALUES('d1','fair',1,'completed',1,300,900,1,100,300,'["fleet@2026-10", "share/fleet@2026-10/device:d1", "step[device:d1/task:qa]#0"]',1,1700000060000);
INSERT INTO "attempt" VALUES('d1','garbage',1,'failed',1,300,900,1,300,900,'["fleet", "step[device:d1/task:math]#0"]',1,1700000060000);
INSERT INTO "attempt" VALUES('d1','old',1,'completed',1,300,900,1,100,300,'["fleet"]',1,1700000060000);
INSERT INTO "attempt" VALUES('d1','open',1,'dispatched',1,300,900,0,0,0,'["fleet"]',1,1700009999000);
INSERT INTO "attempt" VALUES('d1','refused',1,'refunded',1,300,900,0,0,0,'["fleet", "step[device:d1/task:math]#0"]',1,1700000060000);
INSERT INTO "attempt" VALUES('d1','refused',2,'completed',1,300,900,1,100,300,'["fleet", "step[device:d1/task:math]#0"]',1,1700000060000);
INSERT INTO "attempt" VALUES('d2','fair',1,'completed',1,300,900,1,100,300,'["fleet@2026-10", "share/fleet@2026-10/device:d2", "step[device:d2/task:qa]#0"]',1,1700000060000);
INSERT INTO "attempt" VALUES('d2','lost',1,'in_doubt',1,300,900,1,300,900,'["fleet"]',1,1700000060000);
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
INSERT INTO "budget" VALUES('fleet',1000,1000000,10000000,1000,1000000,10000000,6,1200,4200,1,300,900,0,0,0,0,0,0,0,0);
INSERT INTO "budget" VALUES('fleet@2026-10',10,10000,100000,10,10000,100000,2,200,600,0,0,0,500000,2,2,2,2500,4800,25000,49400);
INSERT INTO "budget" VALUES('share/fleet@2026-10/device:d1',NULL,NULL,NULL,NULL,NULL,NULL,1,100,300,0,0,0,0,0,0,0,0,0,0,0);
INSERT INTO "budget" VALUES('share/fleet@2026-10/device:d2',NULL,NULL,NULL,NULL,NULL,NULL,1,100,300,0,0,0,0,0,0,0,0,0,0,0);
INSERT INTO "budget" VALUES('step[device:d1/task:essay]#0',10,NULL,NULL,10,NULL,NULL,0,0,0,0,0,0,0,0,0,0,0,0,0,0);
INSERT INTO "budget" VALUES('step[device:d1/task:math]#0',10,NULL,NULL,10,NULL,NULL,3,500,2100,0,0,0,0,0,0,0,0,0,0,0);
INSERT INTO "budget" VALUES('step[device:d1/task:math]#1',23,NULL,NULL,23,NULL,NULL,0,0,0,0,0,0,0,0,0,0,0,0,0,0);
INSERT INTO "budget" VALUES('step[device:d1/task:qa]#0',10,NULL,NULL,10,NULL,NULL,1,100,300,0,0,0,0,0,0,0,0,0,0,0);
INSERT INTO "budget" VALUES('step[device:d1/task:qa]#1',10,NULL,NULL,10,NULL,NULL,0,0,0,0,0,0,0,0,0,0,0,0,0,0);
INSERT INTO "budget" VALUES('step[device:d2/task:qa]#0',10,NULL,NULL,10,NULL,NULL,1,100,300,0,0,0,0,0,0,0,0,0,0,0);
INSERT INTO "budget" VALUES('step[device:d3/task:qa]#0',10,NULL,NULL,10,NULL,NULL,0,0,0,0,0,0,0,0,0,0,0,0,0,0);
CREATE TABLE call (
  device TEXT NOT NULL, key TEXT NOT NULL, fingerprint TEXT NOT NULL, task TEXT NOT NULL, step INTEGER NOT NULL,
  prompt_id TEXT NOT NULL, model TEXT NOT NULL, help_units INTEGER NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL,
  charged_calls INTEGER NOT NULL, charged_tokens INTEGER NOT NULL, charged_uusd INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, result TEXT, result_sha256 TEXT NOT NULL, finish TEXT NOT NULL,
  upstream_id TEXT NOT NULL, reason TEXT NOT NULL, source_key TEXT NOT NULL, cache_key TEXT NOT NULL, updated_ms INTEGER NOT NULL, beyond_text TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (device, key)
) STRICT, WITHOUT ROWID;
INSERT INTO "call" VALUES('d1','answered','content of answered','math',0,'prompt of answered','m',2,'completed',1,1,100,900,60,40,'42','73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049','stop','up-1','','','cache answered',1700000001000,'');
INSERT INTO "call" VALUES('d1','copied','content of copied','math',-1,'prompt of copied','m',2,'completed',0,0,0,0,60,40,'42','73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049','stop','','','d1|answered','cache answered',1700000000000,'');
INSERT INTO "call" VALUES('d1','cut','content of cut','math',-1,'prompt of cut','m',2,'in_doubt',1,1,300,900,0,0,NULL,'','','','cut','','',1700000000000,'');
INSERT INTO "call" VALUES('d1','fair','content of fair','qa',0,'prompt of fair','m',2,'completed',1,1,100,300,60,40,'42','73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049','stop','up-1','','','',1700000001000,'');
INSERT INTO "call" VALUES('d1','garbage','content of garbage','math',0,'prompt of garbage','m',2,'failed',1,1,300,900,0,0,NULL,'','','','garbage','','cache garbage',1700000000000,'');
INSERT INTO "call" VALUES('d1','old','content of old','math',-1,'prompt of old','m',2,'completed',1,1,100,300,60,40,NULL,'73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049','stop','up-1','','','',1699999000000,'');
INSERT INTO "call" VALUES('d1','open','content of open','math',-1,'prompt of open','m',2,'dispatched',1,0,0,0,0,0,NULL,'','','','','','',1700000000000,'');
INSERT INTO "call" VALUES('d1','refused','content of refused','math',0,'prompt of refused','m',2,'completed',2,1,100,300,60,40,'42','73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049','stop','up-1','','','cache refused',1700000001000,'');
INSERT INTO "call" VALUES('d2','fair','content of fair','qa',0,'prompt of fair','m',2,'completed',1,1,100,300,60,40,'42','73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049','stop','up-1','','','',1700000001000,'');
INSERT INTO "call" VALUES('d2','lost','content of lost','math',-1,'prompt of lost','m',2,'in_doubt',1,1,300,900,0,0,NULL,'','','','lease expired','','',1700000100000,'');
CREATE TABLE device (
  device TEXT PRIMARY KEY, agent_version TEXT NOT NULL, tasks TEXT NOT NULL, first_seen_ms INTEGER NOT NULL,
  last_seen_ms INTEGER NOT NULL, disabled INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "device" VALUES('d1','1.0','["qa"]',1700000000000,1700000000000,0);
INSERT INTO "device" VALUES('d2','1.0','["qa"]',1700000000000,1700000000000,0);
INSERT INTO "device" VALUES('d3','1.0','["qa"]',1700000000000,1700000000000,1);
CREATE TABLE journal (
  seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
  previous TEXT NOT NULL, hash TEXT NOT NULL
) STRICT;
INSERT INTO "journal" VALUES(1,1700000000000,'epoch','{"epoch":1}','0000000000000000000000000000000000000000000000000000000000000000','9326593313d477dbc5ce55bcc1184772d1d6e63259f49758b3856cd178381e7d');
INSERT INTO "journal" VALUES(2,1700000000000,'task','{"device":"d1","dual":"0x1.0000000000000p-1","target_rate":"0x1.3333333333333p-2","task":"math"}','9326593313d477dbc5ce55bcc1184772d1d6e63259f49758b3856cd178381e7d','6a4e0aad5f0c4609d727739b34c529119a321ae6b0697df7ca63878bb01d6e3e');
INSERT INTO "journal" VALUES(3,1700000000000,'open_step','{"call_credit":10,"device":"d1","dual":"0x1.0000000000000p-1","dual_lr":"0x1.47ae147ae147bp-6","group_size":8,"planned_prompts":16,"step":0,"target_rate":"0x1.3333333333333p-2","task":"math","version":1}','6a4e0aad5f0c4609d727739b34c529119a321ae6b0697df7ca63878bb01d6e3e','b27eb53277df2c1d09331f8ebfcca15f964ca3edaef2270b6120a61459ee77f4');
INSERT INTO "journal" VALUES(4,1700000000000,'limits','{"asked":[1000,1000000,10000000],"budget":"fleet","limits":[1000,1000000,10000000]}','b27eb53277df2c1d09331f8ebfcca15f964ca3edaef2270b6120a61459ee77f4','6d4d9067c38e202c1c2c0d2334204d280f96e6d7bf0678b48b1940b4415f2b9d');
INSERT INTO "journal" VALUES(5,1700000000000,'reserve','{"attempt":1,"budgets":["fleet","step[device:d1/task:math]#0"],"cache_key":"cache answered","device":"d1","epoch":1,"fingerprint":"content of answered","help_units":2,"hold":[1,300,900],"key":"answered","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of answered","step":0,"task":"math","version":2}','6d4d9067c38e202c1c2c0d2334204d280f96e6d7bf0678b48b1940b4415f2b9d','5551e1c8eb02dfaeb4699ebef26b8e731e273476fda225fc5e5cf7859d6a67ce');
INSERT INTO "journal" VALUES(6,1700000000000,'reserve','{"attempt":1,"budgets":["fleet","step[device:d1/task:math]#0"],"cache_key":"cache refused","device":"d1","epoch":1,"fingerprint":"content of refused","help_units":2,"hold":[1,300,900],"key":"refused","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of refused","step":0,"task":"math","version":3}','5551e1c8eb02dfaeb4699ebef26b8e731e273476fda225fc5e5cf7859d6a67ce','2662883a7860417813a276eee6ae038b8005389c9685f02166da7253dd3eb8fe');
INSERT INTO "journal" VALUES(7,1700000000000,'reserve','{"attempt":1,"budgets":["fleet","step[device:d1/task:math]#0"],"cache_key":"cache garbage","device":"d1","epoch":1,"fingerprint":"content of garbage","help_units":2,"hold":[1,300,900],"key":"garbage","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of garbage","step":0,"task":"math","version":4}','2662883a7860417813a276eee6ae038b8005389c9685f02166da7253dd3eb8fe','dbdd2184dbf88878df99b3a3f037cc59921687814d8e04cae38a0e737aa4a78c');
INSERT INTO "journal" VALUES(8,1700000001000,'completed','{"attempt":1,"charge":[1,100,900],"device":"d1","finish":"stop","input_tokens":60,"key":"answered","output_tokens":40,"overrun":[1,100,5000],"reason":"","result_sha256":"73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049","upstream_id":"up-1","version":5}','dbdd2184dbf88878df99b3a3f037cc59921687814d8e04cae38a0e737aa4a78c','28196a058a0cfa5284b73c96e89d8303d942d6243aaba81c66d36e094a6edd9b');
INSERT INTO "journal" VALUES(9,1700000000000,'copy','{"cache_key":"cache answered","device":"d1","fingerprint":"content of copied","finish":"stop","help_units":2,"input_tokens":60,"key":"copied","model":"m","output_tokens":40,"prompt_id":"prompt of copied","result_sha256":"73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049","source":"d1|answered","step":-1,"task":"math","version":6}','28196a058a0cfa5284b73c96e89d8303d942d6243aaba81c66d36e094a6edd9b','ac9543e8958c640525b99ecb94301ae0abb1aa9c95051e93dcb4cdc1264938c1');
INSERT INTO "journal" VALUES(10,1700000000000,'refunded','{"attempt":1,"charge":[0,0,0],"device":"d1","key":"refused","reason":"refused","version":7}','ac9543e8958c640525b99ecb94301ae0abb1aa9c95051e93dcb4cdc1264938c1','c57baa8d2a62f38bd09cefa5c35c6c63a5e428dd1b929fde586cc768a44a411e');
INSERT INTO "journal" VALUES(11,1700000000000,'reserve','{"attempt":2,"budgets":["fleet","step[device:d1/task:math]#0"],"cache_key":"cache refused","device":"d1","epoch":1,"fingerprint":"content of refused","help_units":2,"hold":[1,300,900],"key":"refused","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of refused","step":0,"task":"math","version":8}','c57baa8d2a62f38bd09cefa5c35c6c63a5e428dd1b929fde586cc768a44a411e','726746a3d71e4cadff1be694528e11e09592e996914c37c79b850261d2aba089');
INSERT INTO "journal" VALUES(12,1700000001000,'completed','{"attempt":2,"charge":[1,100,300],"device":"d1","finish":"stop","input_tokens":60,"key":"refused","output_tokens":40,"reason":"","result_sha256":"73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049","upstream_id":"up-1","version":9}','726746a3d71e4cadff1be694528e11e09592e996914c37c79b850261d2aba089','c60c6e87c5295907c8f7609d478c6f9b9a6dfff378c9f8383552dc16a23fb2e3');
INSERT INTO "journal" VALUES(13,1700000000000,'failed','{"attempt":1,"charge":[1,300,900],"device":"d1","key":"garbage","reason":"garbage","version":10}','c60c6e87c5295907c8f7609d478c6f9b9a6dfff378c9f8383552dc16a23fb2e3','e9162c02a4f3d0b1e356e2fcda662fd7f13c66e91d33ffc2f2c387b5148c8fcc');
INSERT INTO "journal" VALUES(14,1700000002000,'close_step','{"assist_rate":"0x1.0000000000000p-2","device":"d1","discrepancies":[],"dual_after":"0x1.fef9db22d0e56p-2","help_units":32,"step":0,"task":"math","total_units":128,"version":11}','e9162c02a4f3d0b1e356e2fcda662fd7f13c66e91d33ffc2f2c387b5148c8fcc','da569fd0744b15300750c1d1b2ba712eebcae2683c946d9d49beec3a698c03b0');
INSERT INTO "journal" VALUES(15,1700000000000,'open_step','{"call_credit":23,"device":"d1","dual":"0x1.fef9db22d0e56p-2","dual_lr":"0x1.47ae147ae147bp-6","group_size":8,"planned_prompts":16,"step":1,"target_rate":"0x1.6666666666666p-1","task":"math","version":12}','da569fd0744b15300750c1d1b2ba712eebcae2683c946d9d49beec3a698c03b0','99a27ffa0ba374424a223ff4566b3981ed1f7da2be61869a861358fb30973bd3');
INSERT INTO "journal" VALUES(16,1700000000000,'reserve','{"attempt":1,"budgets":["fleet"],"cache_key":"","device":"d1","epoch":1,"fingerprint":"content of cut","help_units":2,"hold":[1,300,900],"key":"cut","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of cut","step":-1,"task":"math","version":13}','99a27ffa0ba374424a223ff4566b3981ed1f7da2be61869a861358fb30973bd3','e2ff2cbbaa4f2f8f36d294b6a1b6c124b52d584de5da855c5b19e273ce5e0053');
INSERT INTO "journal" VALUES(17,1700000000000,'in_doubt','{"attempt":1,"charge":[1,300,900],"device":"d1","key":"cut","reason":"cut","version":14}','e2ff2cbbaa4f2f8f36d294b6a1b6c124b52d584de5da855c5b19e273ce5e0053','342f2a205d4807f4460fc77572cb7f5ad0704d1f933ca300a6fa9eced5c33af6');
INSERT INTO "journal" VALUES(18,1700000000000,'task','{"device":"d2","dual":"0x1.0000000000000p-1","target_rate":"0x1.3333333333333p-2","task":"math"}','342f2a205d4807f4460fc77572cb7f5ad0704d1f933ca300a6fa9eced5c33af6','19bdc7e7e105d0e75252c02467b58b201ef96fd7024462d3027d11956181b9b5');
INSERT INTO "journal" VALUES(19,1700000000000,'reserve','{"attempt":1,"budgets":["fleet"],"cache_key":"","device":"d2","epoch":1,"fingerprint":"content of lost","help_units":2,"hold":[1,300,900],"key":"lost","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of lost","step":-1,"task":"math","version":1}','19bdc7e7e105d0e75252c02467b58b201ef96fd7024462d3027d11956181b9b5','5a7c1f882328538936410339604737ac01f6c5e741a3fbeccf58e821ec797840');
INSERT INTO "journal" VALUES(20,1700000100000,'in_doubt','{"attempt":1,"charge":[1,300,900],"device":"d2","key":"lost","reason":"lease expired","version":2}','5a7c1f882328538936410339604737ac01f6c5e741a3fbeccf58e821ec797840','5c0970c767532296d8a70f382ef57f4567eae794e28dc96f49097ae2c872349a');
INSERT INTO "journal" VALUES(21,1700000000000,'reserve','{"attempt":1,"budgets":["fleet"],"cache_key":"","device":"d1","epoch":1,"fingerprint":"content of old","help_units":2,"hold":[1,300,900],"key":"old","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of old","step":-1,"task":"math","version":15}','5c0970c767532296d8a70f382ef57f4567eae794e28dc96f49097ae2c872349a','45d664d20c0672292b44485b486117a986b874217cbdde2aca6d729db57da896');
INSERT INTO "journal" VALUES(22,1699999000000,'completed','{"attempt":1,"charge":[1,100,300],"device":"d1","finish":"stop","input_tokens":60,"key":"old","output_tokens":40,"reason":"","result_sha256":"73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049","upstream_id":"up-1","version":16}','45d664d20c0672292b44485b486117a986b874217cbdde2aca6d729db57da896','42971c97adddd73ce55fd5ef3502c06720d0c4bfb4ff66be3c864ed63e4726a4');
INSERT INTO "journal" VALUES(23,1700000000000,'purge','{"calls":[["d1","old"]]}','42971c97adddd73ce55fd5ef3502c06720d0c4bfb4ff66be3c864ed63e4726a4','2b2f4c0506a79393296861e67a7ca182698487d5671ef7b0d5b6a2f5ef5883bb');
INSERT INTO "journal" VALUES(24,1700000000000,'reserve','{"attempt":1,"budgets":["fleet"],"cache_key":"","device":"d1","epoch":1,"fingerprint":"content of open","help_units":2,"hold":[1,300,900],"key":"open","lease_ms":1700009999000,"model":"m","prompt_id":"prompt of open","step":-1,"task":"math","version":17}','2b2f4c0506a79393296861e67a7ca182698487d5671ef7b0d5b6a2f5ef5883bb','8363543c51668df7820a7a85888619a6e39dbabcb345ee6c1844748f73e8eadb');
INSERT INTO "journal" VALUES(25,1700000000000,'device','{"device":"d1","disabled":false}','8363543c51668df7820a7a85888619a6e39dbabcb345ee6c1844748f73e8eadb','48109d961f24a6e6571532b18776e8a54e981ee140bad057877c187d3189702b');
INSERT INTO "journal" VALUES(26,1700000000000,'task','{"begins":true,"device":"d1","dual":"0x1.0000000000000p-1","price":"fleet[task:qa]","target_rate":"0x1.3333333333333p-2","task":"qa"}','48109d961f24a6e6571532b18776e8a54e981ee140bad057877c187d3189702b','1f9c81978f1eb21fe2280f8b9e96402d1bf6486ebba1643609372e940754a5f7');
INSERT INTO "journal" VALUES(27,1700000000000,'open_step','{"call_credit":10,"device":"d1","dual":"0x1.0000000000000p-1","dual_lr":"0x1.47ae147ae147bp-6","group_size":8,"planned_prompts":16,"price":"fleet[task:qa]","step":0,"target_rate":"0x1.3333333333333p-2","task":"qa","version":1}','1f9c81978f1eb21fe2280f8b9e96402d1bf6486ebba1643609372e940754a5f7','1c4b4d7f6ee46b1b0f885f9fe9711c522b2f10a370a3d007e678945a18fbff4f');
INSERT INTO "journal" VALUES(28,1700000000000,'device','{"device":"d2","disabled":false}','1c4b4d7f6ee46b1b0f885f9fe9711c522b2f10a370a3d007e678945a18fbff4f','b3371ccb23744f1af3b046dd52c1578894dc77ea6fbfddd0a00878385063638a');
INSERT INTO "journal" VALUES(29,1700000000000,'task','{"device":"d2","dual":"0x1.0000000000000p-1","price":"fleet[task:qa]","target_rate":"0x1.3333333333333p-2","task":"qa"}','b3371ccb23744f1af3b046dd52c1578894dc77ea6fbfddd0a00878385063638a','f14e03795ba4713455e211488ed86223918fc7a223505b086357b65141cf8f44');
INSERT INTO "journal" VALUES(30,1700000000000,'open_step','{"call_credit":10,"device":"d2","dual":"0x1.0000000000000p-1","dual_lr":"0x1.47ae147ae147bp-6","group_size":8,"planned_prompts":16,"price":"fleet[task:qa]","step":0,"target_rate":"0x1.3333333333333p-2","task":"qa","version":1}','f14e03795ba4713455e211488ed86223918fc7a223505b086357b65141cf8f44','8a4ac15fe71257583b514abc9ebf7052e4f8d55392a5746f5bd0b421c310a4a2');
INSERT INTO "journal" VALUES(31,1700000000000,'device','{"device":"d3","disabled":false}','8a4ac15fe71257583b514abc9ebf7052e4f8d55392a5746f5bd0b421c310a4a2','facc52bc452b035ec0e2dcfe44de30c11cd075ba58f1e99890b7ad68945a08ce');
INSERT INTO "journal" VALUES(32,1700000000000,'task','{"device":"d3","dual":"0x1.0000000000000p-1","price":"fleet[task:qa]","target_rate":"0x1.3333333333333p-2","task":"qa"}','facc52bc452b035ec0e2dcfe44de30c11cd075ba58f1e99890b7ad68945a08ce','9ddb09c29ff35e31a83f6d2f2d36e12d9ca25145a02c75294966d3b56da6b08a');
INSERT INTO "journal" VALUES(33,1700000000000,'open_step','{"call_credit":10,"device":"d3","dual":"0x1.0000000000000p-1","dual_lr":"0x1.47ae147ae147bp-6","group_size":8,"planned_prompts":16,"price":"fleet[task:qa]","step":0,"target_rate":"0x1.3333333333333p-2","task":"qa","version":1}','9ddb09c29ff35e31a83f6d2f2d36e12d9ca25145a02c75294966d3b56da6b08a','47cb6f6f7136f963e9671d7056820f81ba0db1d9f8e1abc9cfd6990a711038c3');
INSERT INTO "journal" VALUES(34,1700000000000,'limits','{"asked":[10,10000,100000],"budget":"fleet@2026-10","floor":[5,5000,50000],"floor_ppm":500000,"joined":"d1","limits":[10,10000,100000],"members":1,"set_aside":[5,5000,50000]}','47cb6f6f7136f963e9671d7056820f81ba0db1d9f8e1abc9cfd6990a711038c3','e8a0962ccdf51cf6505e81ed33e1398cb4f4bf92482854833671969cc870f37a');
INSERT INTO "journal" VALUES(35,1700000000000,'reserve','{"attempt":1,"budgets":["fleet@2026-10","share/fleet@2026-10/device:d1","step[device:d1/task:qa]#0"],"cache_key":"","device":"d1","epoch":1,"fingerprint":"content of fair","help_units":2,"hold":[1,300,900],"key":"fair","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of fair","step":0,"task":"qa","version":2}','e8a0962ccdf51cf6505e81ed33e1398cb4f4bf92482854833671969cc870f37a','151c79b8bca06736f8166c2a88e0483de00367ae0f5068de7bcc3805631a494a');
INSERT INTO "journal" VALUES(36,1700000001000,'completed','{"attempt":1,"charge":[1,100,300],"device":"d1","finish":"stop","input_tokens":60,"key":"fair","output_tokens":40,"reason":"","result_sha256":"73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049","upstream_id":"up-1","version":3}','151c79b8bca06736f8166c2a88e0483de00367ae0f5068de7bcc3805631a494a','ba08c799dd3ff50036fbae12da70b0a7e7d5b250881633e7d9f2ee5551a85d70');
INSERT INTO "journal" VALUES(37,1700000002000,'close_step','{"assist_rate":"0x1.0000000000000p-2","device":"d1","discrepancies":[],"dual_after":"0x1.ffa89e60f04c7p-2","dual_before":"0x1.0000000000000p-1","help_units":32,"round_units":384,"step":0,"task":"qa","total_units":128,"version":4}','ba08c799dd3ff50036fbae12da70b0a7e7d5b250881633e7d9f2ee5551a85d70','9e72ee32a9dd05f203709fb21c414782ee13b99cb0ad2dad742a7597272eee7f');
INSERT INTO "journal" VALUES(38,1700000000000,'limits','{"asked":[10,10000,100000],"budget":"fleet@2026-10","floor":[2,2500,25000],"floor_ppm":500000,"joined":"d2","limits":[10,10000,100000],"members":2,"set_aside":[3,4900,49700]}','9e72ee32a9dd05f203709fb21c414782ee13b99cb0ad2dad742a7597272eee7f','abeb90397a1ff4d8d882a5fe896c49007140efc0a6346e3a78b853b836f107ac');
INSERT INTO "journal" VALUES(39,1700000000000,'reserve','{"attempt":1,"budgets":["fleet@2026-10","share/fleet@2026-10/device:d2","step[device:d2/task:qa]#0"],"cache_key":"","device":"d2","epoch":1,"fingerprint":"content of fair","help_units":2,"hold":[1,300,900],"key":"fair","lease_ms":1700000060000,"model":"m","prompt_id":"prompt of fair","step":0,"task":"qa","version":2}','abeb90397a1ff4d8d882a5fe896c49007140efc0a6346e3a78b853b836f107ac','5690e0a7349bc800e98476bbcf35f7c2517e4a1e0001f70299454b47000cab13');
INSERT INTO "journal" VALUES(40,1700000001000,'completed','{"attempt":1,"charge":[1,100,300],"device":"d2","finish":"stop","input_tokens":60,"key":"fair","output_tokens":40,"reason":"","result_sha256":"73475cb40a568e8da8a045ced110137e159f890ac4da883b6b17dc651b3a8049","upstream_id":"up-1","version":3}','5690e0a7349bc800e98476bbcf35f7c2517e4a1e0001f70299454b47000cab13','00b6b85ea9b53252d3a6f78af57f4153f5203ad172951d7a6022aca8de647b0a');
INSERT INTO "journal" VALUES(41,1700000002000,'close_step','{"assist_rate":"0x1.0000000000000p-2","device":"d2","discrepancies":[],"dual_after":"0x1.ff513cc1e098ep-2","dual_before":"0x1.ffa89e60f04c7p-2","help_units":32,"round_units":384,"step":0,"task":"qa","total_units":128,"version":4}','00b6b85ea9b53252d3a6f78af57f4153f5203ad172951d7a6022aca8de647b0a','4000b09017a7f5ac2e462915478cc4e4b13de38de148f29c232d886babf5ada3');
INSERT INTO "journal" VALUES(42,1700000050000,'open_step','{"call_credit":10,"device":"d1","dual":"0x1.ff513cc1e098ep-2","dual_lr":"0x1.47ae147ae147bp-6","group_size":8,"planned_prompts":16,"price":"fleet[task:qa]","step":1,"target_rate":"0x1.3333333333333p-2","task":"qa","version":5}','4000b09017a7f5ac2e462915478cc4e4b13de38de148f29c232d886babf5ada3','4faf93c57dd3f273284ddb440caf879dc25419091c7a51cedc26252d21362488');
INSERT INTO "journal" VALUES(43,1700000050000,'leave','{"device":"d3","price":"fleet[task:qa]"}','4faf93c57dd3f273284ddb440caf879dc25419091c7a51cedc26252d21362488','ac0ca0de93aea1d9f4fd1db3c606bb72becd645ada1d369805b9f79d98b73213');
INSERT INTO "journal" VALUES(44,1700000051000,'device','{"device":"d3","disabled":true}','ac0ca0de93aea1d9f4fd1db3c606bb72becd645ada1d369805b9f79d98b73213','153cd7a90afefd161c6c9ccbd0cf03118076050befbf6974d98e52a869b01ee0');
INSERT INTO "journal" VALUES(45,1700000000000,'task','{"begins":true,"device":"d1","dual":"0x1.0000000000000p-1","price":"global[device:d1]","target_rate":"0x1.3333333333333p-2","task":"essay"}','153cd7a90afefd161c6c9ccbd0cf03118076050befbf6974d98e52a869b01ee0','f5a9af2144b16aa118d91268e9e67b9eb0ebb7d5e17d62b00a4eeb6563020cf4');
INSERT INTO "journal" VALUES(46,1700000000000,'open_step','{"call_credit":10,"device":"d1","dual":"0x1.0000000000000p-1","dual_lr":"0x1.47ae147ae147bp-6","group_size":8,"planned_prompts":16,"price":"global[device:d1]","step":0,"target_rate":"0x1.3333333333333p-2","task":"essay","version":1}','f5a9af2144b16aa118d91268e9e67b9eb0ebb7d5e17d62b00a4eeb6563020cf4','53ec4dba26aeb7175bd2db5c74d735dd9a9b770319ebceb43cefd23e9315134f');
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO "meta" VALUES('epoch',1);
INSERT INTO "meta" VALUES('stopped_cleanly',1);
CREATE TABLE price (
  key TEXT PRIMARY KEY, dual TEXT NOT NULL, updates INTEGER NOT NULL, units INTEGER NOT NULL CHECK (units >= 0)
) STRICT, WITHOUT ROWID;
INSERT INTO "price" VALUES('fleet[task:qa]','0x1.ff513cc1e098ep-2',2,256);
INSERT INTO "price" VALUES('global[device:d1]','0x1.0000000000000p-1',0,0);
CREATE TABLE price_member (
  price TEXT NOT NULL, device TEXT NOT NULL, units INTEGER NOT NULL CHECK (units >= 0), seen_ms INTEGER NOT NULL,
  PRIMARY KEY (price, device)
) STRICT, WITHOUT ROWID;
INSERT INTO "price_member" VALUES('fleet[task:qa]','d1',128,1700000050000);
INSERT INTO "price_member" VALUES('fleet[task:qa]','d2',128,1700000002000);
INSERT INTO "price_member" VALUES('fleet[task:qa]','d3',0,1700000000000);
CREATE TABLE set_limits (scope TEXT PRIMARY KEY, changes TEXT NOT NULL, version INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE step (
  device TEXT NOT NULL, task TEXT NOT NULL, step INTEGER NOT NULL, planned_prompts INTEGER NOT NULL, group_size INTEGER NOT NULL,
  dual TEXT NOT NULL, target_rate TEXT NOT NULL, dual_lr TEXT NOT NULL, call_credit INTEGER, closed INTEGER NOT NULL,
  total_units INTEGER NOT NULL, help_units INTEGER NOT NULL, dual_after TEXT NOT NULL, assist_rate TEXT NOT NULL,
  discrepancies TEXT NOT NULL, price TEXT NOT NULL DEFAULT '', dual_before TEXT NOT NULL DEFAULT '0x0.0p+0', round_units INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (device, task, step)
) STRICT, WITHOUT ROWID;
INSERT INTO "step" VALUES('d1','essay',0,16,8,'0x1.0000000000000p-1','0x1.3333333333333p-2','0x1.47ae147ae147bp-6',10,0,0,0,'0x0.0p+0','0x0.0p+0','[]','global[device:d1]','0x0.0p+0',0);
INSERT INTO "step" VALUES('d1','math',0,16,8,'0x1.0000000000000p-1','0x1.3333333333333p-2','0x1.47ae147ae147bp-6',10,1,128,32,'0x1.fef9db22d0e56p-2','0x1.0000000000000p-2','[]','','0x1.0000000000000p-1',0);
INSERT INTO "step" VALUES('d1','math',1,16,8,'0x1.fef9db22d0e56p-2','0x1.6666666666666p-1','0x1.47ae147ae147bp-6',23,0,0,0,'0x0.0p+0','0x0.0p+0','[]','','0x0.0p+0',0);
INSERT INTO "step" VALUES('d1','qa',0,16,8,'0x1.0000000000000p-1','0x1.3333333333333p-2','0x1.47ae147ae147bp-6',10,1,128,32,'0x1.ffa89e60f04c7p-2','0x1.0000000000000p-2','[]','fleet[task:qa]','0x1.0000000000000p-1',384);
INSERT INTO "step" VALUES('d1','qa',1,16,8,'0x1.ff513cc1e098ep-2','0x1.3333333333333p-2','0x1.47ae147ae147bp-6',10,0,0,0,'0x0.0p+0','0x0.0p+0','[]','fleet[task:qa]','0x0.0p+0',0);
INSERT INTO "step" VALUES('d2','qa',0,16,8,'0x1.0000000000000p-1','0x1.3333333333333p-2','0x1.47ae147ae147bp-6',10,1,128,32,'0x1.ff513cc1e098ep-2','0x1.0000000000000p-2','[]','fleet[task:qa]','0x1.ffa89e60f04c7p-2',384);
INSERT INTO "step" VALUES('d3','qa',0,16,8,'0x1.0000000000000p-1','0x1.3333333333333p-2','0x1.47ae147ae147bp-6',10,0,0,0,'0x0.0p+0','0x0.0p+0','[]','fleet[task:qa]','0x0.0p+0',0);
CREATE TABLE task_state (
  device TEXT NOT NULL, task TEXT NOT NULL, dual TEXT NOT NULL, target_rate TEXT NOT NULL, next_step INTEGER NOT NULL,
  version INTEGER NOT NULL, charged_calls INTEGER NOT NULL, charged_tokens INTEGER NOT NULL, charged_uusd INTEGER NOT NULL, price TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (device, task)
) STRICT, WITHOUT ROWID;
INSERT INTO "task_state" VALUES('d1','essay','0x1.0000000000000p-1','0x1.3333333333333p-2',0,1,0,0,0,'global[device:d1]');
INSERT INTO "task_state" VALUES('d1','math','0x1.fef9db22d0e56p-2','0x1.6666666666666p-1',1,17,5,900,3300,'');
INSERT INTO "task_state" VALUES('d1','qa','0x1.ff513cc1e098ep-2','0x1.3333333333333p-2',1,5,1,100,300,'fleet[task:qa]');
INSERT INTO "task_state" VALUES('d2','math','0x1.0000000000000p-1','0x1.3333333333333p-2',0,2,1,300,900,'');
INSERT INTO "task_state" VALUES('d2','qa','0x1.ff513cc1e098ep-2','0x1.3333333333333p-2',1,4,1,100,300,'fleet[task:qa]');
INSERT INTO "task_state" VALUES('d3','qa','0x1.0000000000000p-1','0x1.3333333333333p-2',0,1,0,0,0,'fleet[task:qa]');
CREATE INDEX call_by_cache_key ON call (cache_key, updated_ms)
  WHERE state = 'completed' AND result IS NOT NULL AND source_key = '' AND cache_key <> '';
CREATE INDEX call_with_result ON call (updated_ms) WHERE result IS NOT NULL;
CREATE INDEX attempt_open ON attempt (lease_ms) WHERE state = 'dispatched';
CREATE TRIGGER journal_keeps BEFORE UPDATE ON journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER journal_stays BEFORE DELETE ON journal BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE INDEX price_member_seen ON price_member (seen_ms) WHERE units > 0;
CREATE INDEX call_by_step ON call (device, task, step, prompt_id);
COMMIT;
