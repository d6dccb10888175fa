-- Which record refers to which: kept by whoever owns the referring record, in the transaction that changes it.
CREATE TABLE uses (
    account_id text NOT NULL,
    user_kind text NOT NULL,
    user_id text NOT NULL,
    target_kind text NOT NULL,
    target_id text NOT NULL,
    PRIMARY KEY (account_id, target_kind, target_id, user_kind, user_id)
);
CREATE INDEX uses_of ON uses (account_id, user_kind, user_id);
