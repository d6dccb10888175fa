//! Signs of a prompt injection (contract 02 §8): each has a weight and counts once.

use std::sync::LazyLock;

use regex::{Regex, RegexBuilder};

use crate::normal::{is_invisible, plain};

/// The signs and what each weighs.
pub const INJECTION_WEIGHTS: [(&str, f64); 6] = [
    ("order to ignore instructions", 0.7),
    ("request for the system prompt", 0.5),
    ("new identity", 0.4),
    ("fake role markers", 0.5),
    ("invisible characters", 0.3),
    ("encoded text to decode", 0.3),
];

/// Verbs, qualifiers and nouns of an order to ignore what was said before, without accents.
const OVERRIDES: [(&str, &str, &str); 6] = [
    // English
    (
        "ignore|disregard|forget|override|bypass|do not follow|don't follow|pay no attention to",
        "previous|prior|above|earlier|preceding|foregoing|system|initial|original|existing|everything|all|any|your",
        "instructions?|prompts?|rules?|directives?|guidelines?|commands?|messages?|context|told|said",
    ),
    // Spanish
    (
        "ignora|ignore|ignorad|ignores|olvida|olvide|olvidate|olvidad|descarta|desobedece|omite|haz caso omiso|no sigas",
        "anteriores|anterior|previas|previos|de arriba|del sistema|iniciales|originales|todas|todos|tus",
        "instrucciones|indicaciones|reglas|ordenes|directrices|mensajes|prompt",
    ),
    // French
    (
        "ignore|ignores|ignorez|ignorer|oublie|oubliez|oublier|neglige|negligez|ne tiens pas compte|ne tenez pas compte|ne suis pas|fais abstraction|faites abstraction",
        "precedente?s?|anterieure?s?|ci-dessus|du systeme|systeme|initiale?s?|toutes?|tous|tes|vos",
        "instructions?|consignes?|regles?|directives?|messages?|prompt",
    ),
    // German
    (
        "ignoriere|ignorier|ignorieren|ignoriert|vergiss|vergesst|vergessen|missachte|missachten|ubergehe|ubergeh|verwirf|befolge nicht",
        "vorherigen?|vorigen?|bisherigen?|obigen?|fruheren?|vorangegangenen?|ursprunglichen?|alle|allen|deine|system",
        "anweisung|anweisungen|systemanweisungen|instruktionen|regeln|vorgaben|befehle|nachrichten|prompt|systemprompt",
    ),
    // Portuguese
    (
        "ignore|ignora|ignorem|esqueca|esquece|esquecam|desconsidere|desconsidera|descarte|nao siga|nao sigas",
        "anteriores|anterior|previas|acima|do sistema|iniciais|originais|todas|todos|suas|tuas",
        "instrucoes|instrucao|orientacoes|regras|ordens|diretrizes|mensagens|prompt",
    ),
    // Italian
    (
        "ignora|ignorate|ignori|ignorare|dimentica|dimenticate|dimentichi|trascura|trascurate|non considerare|non seguire|lascia perdere",
        "precedenti|precedente|sopra|di sistema|del sistema|iniziali|originali|tutte|tutti|tue",
        "istruzioni|indicazioni|regole|direttive|ordini|messaggi|prompt",
    ),
];

const REVEALS: [(&str, &str); 6] = [
    (
        "reveal|show|print|repeat|display|output|tell me|give me|share|write out|expose|leak|recite|what is|what's|what are|what were",
        "system prompt|system message|hidden instructions?|hidden prompt|secret instructions?|initial instructions?|initial prompt|original instructions?|your instructions|your prompt|your rules|text above|words above|everything above",
    ),
    (
        "revela|revele|muestra|muestrame|muestre|imprime|repite|repita|dime|ensename|cual es|cuales son",
        "prompt del sistema|prompt de sistema|mensaje del sistema|instrucciones ocultas|instrucciones secretas|instrucciones iniciales|tus instrucciones|tu prompt|instrucciones del sistema",
    ),
    (
        "revele|revelez|reveler|montre|montrez|affiche|affichez|repete|repetez|donne|donnez|dis|dites|quel est|quelles sont",
        "prompt systeme|prompt du systeme|message systeme|instructions cachees|instructions secretes|instructions initiales|tes instructions|vos instructions|ton prompt|votre prompt|instructions systeme",
    ),
    (
        "zeige?|zeig mir|verrate?|nenne?|wiederhole?|drucke?|gib|offenbare?|was ist|was sind|wie lauten|wie lautet",
        "system-?prompt|systemanweisung(?:en)?|systemnachricht|versteckten? anweisungen|geheimen? anweisungen|ursprunglichen? anweisungen|deine anweisungen|deinen prompt|dein prompt",
    ),
    (
        "revele|revela|mostre|mostra|imprima|repita|repete|diga|diz|exiba|qual e|quais sao",
        "prompt do sistema|prompt de sistema|mensagem do sistema|instrucoes ocultas|instrucoes secretas|instrucoes iniciais|suas instrucoes|tuas instrucoes|seu prompt|teu prompt|instrucoes do sistema",
    ),
    (
        "rivela|rivelami|mostra|mostrami|stampa|ripeti|dimmi|qual e|quali sono",
        "prompt di sistema|prompt del sistema|messaggio di sistema|istruzioni nascoste|istruzioni segrete|istruzioni iniziali|tue istruzioni|tuo prompt|istruzioni di sistema",
    ),
];

const IDENTITIES: [&str; 6] = [
    r"\byou are now\b|\bfrom now on,? you(?:'re| are| will)\b|\b(?:act|behave|respond|answer) as\b[^.\n]{0,80}\b(?:without|no|free of)\b[^.\n]{0,30}\b(?:restrictions?|limits?|limitations?|filters?|rules|censorship)\b|\bpretend (?:to be|you are|you're)\b|\byou (?:have|are) (?:no|free of|without) (?:restrictions|limits|rules)\b",
    r"\bahora eres\b|\ba partir de ahora,? (?:eres|seras)\b|\bactua como\b[^.\n]{0,80}\bsin (?:restricciones|limites|filtros|reglas)\b|\bfinge (?:ser|que eres)\b",
    r"\btu es (?:maintenant|desormais)\b|\bvous etes (?:maintenant|desormais)\b|\ba partir de maintenant,? (?:tu es|vous etes)\b|\b(?:agis|agissez) comme\b[^.\n]{0,80}\bsans (?:aucune )?(?:restrictions?|limites?|filtres?|regles?)\b|\bfais semblant d'etre\b",
    r"\bdu bist (?:jetzt|nun|ab jetzt|ab sofort)\b|\bab (?:jetzt|sofort) bist du\b|\b(?:verhalte dich|handle|antworte) (?:wie|als)\b[^.\n]{0,80}\bohne (?:jegliche |alle )?(?:einschrankungen|grenzen|filter|regeln)\b|\btu so, als (?:ob du|warst du)\b",
    r"\bagora (?:voce e|tu es)\b|\bvoce agora e\b|\ba partir de agora,? (?:voce e|tu es)\b|\b(?:aja|atue|age) como\b[^.\n]{0,80}\bsem (?:restricoes|limites|filtros|regras)\b|\bfinja (?:ser|que e)\b",
    r"\b(?:ora|adesso) sei\b|\bda (?:ora|adesso) in poi,? sei\b|\bd'ora in poi,? sei\b|\bagisci come\b[^.\n]{0,80}\bsenza (?:restrizioni|limiti|filtri|regole)\b|\bfingi di essere\b",
];

static OVERRIDE: LazyLock<Regex> = LazyLock::new(|| {
    let either = OVERRIDES.iter().map(|(verb, which, what)| {
        format!(
            r"\b(?:{verb})\b[^.!?\n]{{0,60}}(?:\b(?:{which})\b[^.!?\n]{{0,40}}\b(?:{what})\b|\b(?:{what})\b[^.!?\n]{{0,40}}\b(?:{which})\b)"
        )
    });
    any(either)
});
static REVEAL: LazyLock<Regex> =
    LazyLock::new(|| any(REVEALS.iter().map(|(verb, what)| format!(r"\b(?:{verb})\b[^.!?\n]{{0,60}}\b(?:{what})\b"))));
static IDENTITY: LazyLock<Regex> = LazyLock::new(|| any(IDENTITIES.iter().map(|pattern| (*pattern).to_owned())));
static MARKERS: LazyLock<Regex> = LazyLock::new(|| {
    any([r"<\||\[/?inst\]|<</?sys>>|(?m:^\s*(?:#{1,6}\s*)?system\s*:|^\s*#{1,6}\s*system\b)".to_owned()])
});
static ENCODED: LazyLock<Regex> = LazyLock::new(|| any([r"[A-Za-z0-9+/_-]{200,}".to_owned()]));
static DECODE: LazyLock<Regex> =
    LazyLock::new(|| any([r"\bde[ck]od(?:e|es|ez|ed|ing|er|ifica|ifique|iere|ieren|ifichi|ifikasi)".to_owned()]));

fn any(patterns: impl IntoIterator<Item = String>) -> Regex {
    let pattern = patterns.into_iter().map(|pattern| format!("(?:{pattern})")).collect::<Vec<_>>().join("|");
    RegexBuilder::new(&pattern).size_limit(64 << 20).build().expect("the patterns are ours")
}

/// How much a text looks like a prompt injection: the sum of the weights of its signs, at most 1.
pub fn injection_score(text: &str) -> f64 {
    let normal = plain(text);
    let signs = [
        OVERRIDE.is_match(&normal),
        REVEAL.is_match(&normal),
        IDENTITY.is_match(&normal),
        MARKERS.is_match(&normal),
        text.chars().any(is_invisible),
        ENCODED.is_match(text) && DECODE.is_match(&normal),
    ];
    let found = signs.iter().zip(INJECTION_WEIGHTS).filter(|(found, _)| **found);
    let sum = found.fold(0.0, |sum, (_, (_, weight))| sum + weight);
    // Tenths add up to tenths.
    ((sum * 10.0).round() / 10.0).min(1.0)
}
