use platform_core::{AccountId, Caller, Credential, Origin};

/// Who calls with a full key of an account of their own.
pub fn full_caller() -> Caller {
    Caller {
        account: AccountId::generate(),
        credential: Credential::FullKey("test".into()),
        projects: None,
        user_uid: "apikey:test".into(),
        origin: Origin::default(),
    }
}
