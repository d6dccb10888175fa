//! One provider: the models that are known of it, and how its calls fare.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, RwLock},
    time::Duration,
};

use platform_core::{AccountId, FairSemaphore, Money};
use platform_runtime::ModelSpec;
use tracing::warn;

use crate::{
    breaker::Breaker,
    broken::Broken,
    call::list_models,
    catalog,
    config::{CallLimits, Protocol, ProviderConfig},
    demo,
};

pub(crate) struct Provider {
    pub name: Arc<str>,
    pub config: ProviderConfig,
    /// Known models, the preferred one first.
    pub table: Vec<ModelSpec>,
    pub index: HashMap<Arc<str>, usize>,
    pub embeddings: HashSet<String>,
    /// Of the vectors of models, where the settings say.
    pub dimensions: HashMap<String, usize>,
    /// What the provider itself lists; `None` while it has not answered.
    pub listed: RwLock<Option<Vec<String>>>,
    pub warned: RwLock<HashSet<String>>,
    pub breaker: Breaker,
    pub places: Option<FairSemaphore>,
}

impl Provider {
    pub fn new(config: ProviderConfig, demo_price: (Money, Money), limits: &CallLimits) -> Self {
        let name: Arc<str> = config.name.as_str().into();
        let mut table = match config.protocol {
            Protocol::Demo => vec![demo::spec(demo_price)],
            _ => catalog::bundled_models(&name),
        };
        let mut from_file = Vec::new();
        let (mut embeddings, mut dimensions) = (HashSet::new(), HashMap::new());
        for model in &config.models {
            if model.embedding {
                embeddings.insert(model.llm.clone());
            }
            if let Some(count) = model.dimensions.and_then(|count| usize::try_from(count).ok()) {
                dimensions.insert(model.llm.clone(), count);
            }
            let known = table.iter().position(|spec| *spec.llm == *model.llm).map(|known| table.remove(known));
            let known = known.or_else(|| catalog::bundled_model(&name, &model.llm));
            from_file.push(catalog::with_file(known, &name, model));
        }
        from_file.append(&mut table);
        let index = from_file.iter().enumerate().map(|(i, spec)| (Arc::clone(&spec.llm), i)).collect();
        let places = (limits.concurrency > 0).then(|| FairSemaphore::new(limits.concurrency, limits.concurrency));
        Self {
            name,
            table: from_file,
            index,
            embeddings,
            dimensions,
            listed: RwLock::default(),
            warned: RwLock::default(),
            breaker: Breaker::default(),
            places: places.filter(|_| config.protocol != Protocol::Demo),
            config,
        }
    }

    /// Makes a call when there is a place among the calls to the provider; waiting for one is part of its time.
    pub async fn admit<T>(
        &self,
        account: &AccountId,
        llm: &Arc<str>,
        total: Duration,
        asked: impl Future<Output = Result<T, Broken>>,
    ) -> Result<T, Broken> {
        let until = tokio::time::Instant::now() + total;
        let _place = match &self.places {
            Some(places) => {
                let place = tokio::time::timeout_at(until, places.acquire(account)).await;
                Some(place.map_err(|_| Broken::crowded())?)
            }
            None => None,
        };
        let key = (account.clone(), Arc::clone(llm));
        if !self.breaker.admits(&key) {
            return Err(Broken::left_alone());
        }
        let outcome = match tokio::time::timeout_at(until, asked).await {
            Ok(outcome) => outcome,
            // A provider that is in trouble is silent before: this one had much to say, or little time was left.
            Err(_) => Err(Broken { counts: false, ..Broken::timeout("the whole call") }),
        };
        match &outcome {
            Err(broken) if broken.counts => self.breaker.failed(key),
            Err(Broken { status: None, .. }) => {}
            // Whoever refuses a request answers.
            Ok(_) | Err(_) => self.breaker.answered(&key),
        }
        outcome
    }

    pub fn is_configured(&self) -> bool {
        !self.config.probed || self.listed.read().expect("lock").is_some()
    }

    pub fn find(&self, llm: &str) -> Option<ModelSpec> {
        if let Some(at) = self.index.get(llm) {
            return Some(self.table[*at].clone());
        }
        if let Some(spec) = catalog::bundled_model(&self.name, llm) {
            return Some(spec);
        }
        let is_listed = self.listed.read().expect("lock").as_ref().is_some_and(|names| names.iter().any(|n| n == llm));
        if is_listed && self.warned.write().expect("lock").insert(llm.to_owned()) {
            warn!(provider = &*self.name, model = llm, "This model has no known price; it counts as free.");
        }
        is_listed.then(|| catalog::unknown(&self.name, llm))
    }

    /// The same, unless it makes vectors.
    pub fn find_chat(&self, llm: &str) -> Option<ModelSpec> {
        self.find(llm).filter(|_| !self.makes_vectors(llm))
    }

    /// What the providers file says, or the name of a model of which that says nothing.
    pub fn makes_vectors(&self, llm: &str) -> bool {
        self.embeddings.contains(llm) || !self.index.contains_key(llm) && llm.contains("embed")
    }

    pub fn first(&self) -> Option<ModelSpec> {
        self.usable().into_iter().next()
    }

    /// Known and listed models, embeddings left out, the preferred one first.
    pub fn usable(&self) -> Vec<ModelSpec> {
        let listed = self.listed.read().expect("lock").clone().unwrap_or_default();
        let others = listed.iter().filter(|name| !self.index.contains_key(name.as_str()));
        let others: Vec<ModelSpec> = others
            .map(|name| catalog::bundled_model(&self.name, name).unwrap_or_else(|| catalog::unknown(&self.name, name)))
            .collect();
        let known = self.table.iter().cloned();
        known.chain(others).filter(|spec| !self.makes_vectors(&spec.llm)).collect()
    }

    pub fn names(&self) -> Vec<String> {
        self.usable().iter().map(|spec| spec.llm.to_string()).take(20).collect()
    }

    pub async fn refresh(&self, client: &reqwest::Client) {
        if self.config.protocol == Protocol::Demo {
            return;
        }
        let listed = list_models(client, &self.config).await;
        let mut known = self.listed.write().expect("lock");
        if listed.is_some() || self.config.probed {
            *known = listed;
        }
    }
}
