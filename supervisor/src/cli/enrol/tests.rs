#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use crate::config::Config;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, SanType};

fn args() -> EnrolArgs {
    EnrolArgs {
        gateway: "gw:7421".to_owned(),
        token: String::new(),
        replace: false,
        dir: None,
        listen: "127.0.0.1:7420".parse().unwrap(),
        run_as_user: Some("agents".to_owned()),
    }
}

/// Certificate of a new CA with this name, and its key.
fn issued(name: &str) -> (IssuedCertificate, KeyPair) {
    let [ca_key, key] = [(); 2].map(|()| KeyPair::generate().unwrap());
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).unwrap().pem();
    let mut own = CertificateParams::default();
    own.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
    let certificate = own.signed_by(&key, &Issuer::new(params, ca_key)).unwrap().pem();
    (IssuedCertificate { certificate, ca, cell: "acp://p/cell/main".to_owned() }, key)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn files_take_the_place_of_earlier_ones_together() {
    let dir = tempfile::tempdir().unwrap();
    let (first, first_key) = issued("acp://p/host/big1");
    let (second, second_key) = issued("acp://p/host/big2");
    for (issued, key, want) in
        [(&first, &first_key, "acp://p/host/big1"), (&second, &second_key, "acp://p/host/big2")]
    {
        let files = HostFiles::open(dir.path()).unwrap();
        assert!(HostFiles::open(dir.path()).is_err(), "one enrolment at a time");
        assert_eq!(files.install(issued, key, true).unwrap().to_string(), want);
        drop(files);
        assert_eq!(names(dir.path()), ["tls"]);
        assert_eq!(names(&dir.path().join("tls")), ["ca.crt", "host.crt", "host.key"]);
        let [cert, secret, ca] = [CERT, KEY, CA].map(|name| dir.path().join(DIR).join(name));
        assert_eq!(ServerTls::load(&cert, &secret, &ca).unwrap().identity(), want);
    }
    // What a killed enrolment left is removed by the next one.
    std::fs::create_dir(dir.path().join(NEW)).unwrap();
    std::fs::write(dir.path().join(NEW).join(KEY), "half a key").unwrap();
    drop(HostFiles::open(dir.path()).unwrap());
    assert_eq!(names(dir.path()), ["tls"]);
}

#[test]
fn unusable_certificates_leave_the_working_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (good, good_key) = issued("acp://p/host/big1");
    let _ = HostFiles::open(dir.path()).unwrap().install(&good, &good_key, false).unwrap();
    let before = std::fs::read(dir.path().join("tls/host.crt")).unwrap();

    let (strange, strange_key) = issued("acp://p/host/big1");
    let foreign_ca = IssuedCertificate { ca: strange.ca.clone(), ..good.clone() };
    let (cell, cell_key) = issued("acp://p/cell/main");
    for (issued, key, want) in [
        (&good, &strange_key, "is not the key of the certificate"),
        (&foreign_ca, &good_key, "cannot be used"),
        (&cell, &cell_key, "which is not a host"),
        (&IssuedCertificate { certificate: String::new(), ..good.clone() }, &good_key, "has no certificate"),
    ] {
        let error = HostFiles::open(dir.path()).unwrap().install(issued, key, true).unwrap_err();
        assert!(error.message().contains(want), "{want}: {}", error.message());
        assert_eq!(names(dir.path()), ["tls"]);
        assert_eq!(std::fs::read(dir.path().join("tls/host.crt")).unwrap(), before);
    }
}

#[test]
fn certificates_of_another_ca_or_name_need_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let (first, key) = issued("acp://p/host/big1");
    let install = |issued, key, replace| HostFiles::open(dir.path()).unwrap().install(issued, key, replace);
    // The second one is a renewal.
    for _ in 0..2 {
        let _ = install(&first, &key, false).unwrap();
    }
    let before = std::fs::read(dir.path().join("tls/ca.crt")).unwrap();
    let (other, other_key) = issued("acp://p/host/big1");
    let error = install(&other, &other_key, false).unwrap_err();
    assert!(error.message().contains("has another CA"), "{}", error.message());
    assert_eq!(std::fs::read(dir.path().join("tls/ca.crt")).unwrap(), before);
    let _ = install(&other, &other_key, true).unwrap();
    assert_ne!(std::fs::read(dir.path().join("tls/ca.crt")).unwrap(), before);
}

#[test]
fn directory_with_other_files_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join(DIR)).unwrap();
    std::fs::write(dir.path().join(DIR).join("notes"), "mine").unwrap();
    let error = HostFiles::open(dir.path()).err().unwrap();
    assert!(error.message().contains("notes is not a file of an earlier enrolment"), "{}", error.message());
}

#[test]
fn configuration_is_written_once_and_valid() {
    let dir = tempfile::tempdir().unwrap();
    let files = HostFiles::open(dir.path()).unwrap();
    let path = files.configure(&args(), "acp://p/cell/main").unwrap().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let config = Config::parse(&text).unwrap();
    assert_eq!(config.tls_key.unwrap(), dir.path().join("tls/host.key"));
    assert_eq!(config.tenant[0].cell.as_deref(), Some("acp://p/cell/main"));
    assert_eq!(files.configure(&args(), "acp://p/cell/other").unwrap(), None);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    let without_user = EnrolArgs { run_as_user: None, ..args() };
    assert!(Config::parse(&configuration(dir.path(), &without_user, "acp://p/cell/main")).is_ok());
}
