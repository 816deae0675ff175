//! Signatures of tokens by ring, the cryptography of TLS here.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature as by;

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: refuse_to_sign,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes ring the library that verifies signatures of tokens in this process.
pub fn install() {
    // It fails if it was done before.
    let _ = PROVIDER.install_default();
}

fn refuse_to_sign(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    // A public key must never be used as the secret of another algorithm.
    match key.family() == algorithm.family() {
        true => Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() })),
        false => Err(ErrorKind::InvalidAlgorithm.into()),
    }
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let verified = match (self.key.kind(), rsa(self.algorithm), curve(self.algorithm)) {
            (DecodingKeyKind::RsaModulusExponent { n, e }, Some(parameters), None) => {
                by::RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (DecodingKeyKind::SecretOrDer(key), None, Some(parameters)) => {
                by::UnparsedPublicKey::new(parameters, key).verify(message, signature)
            }
            _ => return Err(Error::new()),
        };
        verified.map_err(|_| Error::new())
    }
}

fn rsa(algorithm: Algorithm) -> Option<&'static by::RsaParameters> {
    match algorithm {
        Algorithm::RS256 => Some(&by::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Some(&by::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Some(&by::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Some(&by::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Some(&by::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Some(&by::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}

fn curve(algorithm: Algorithm) -> Option<&'static dyn by::VerificationAlgorithm> {
    match algorithm {
        Algorithm::ES256 => Some(&by::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Some(&by::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Some(&by::ED25519),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::crypto::verify;

    /// The example of RFC 7515, appendix A.2.
    const SIGNED: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    const SIGNATURE: &str = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
    const MODULUS: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";

    #[test]
    fn signatures_of_rsa_are_verified_by_their_algorithm_only() {
        install();
        let key = DecodingKey::from_rsa_components(MODULUS, "AQAB").unwrap();
        let verified = |message: &str, algorithm| verify(SIGNATURE, message.as_bytes(), &key, algorithm);
        assert!(verified(SIGNED, Algorithm::RS256).unwrap());
        assert!(!verified(&SIGNED[1..], Algorithm::RS256).unwrap());
        for other in [Algorithm::RS384, Algorithm::RS512, Algorithm::PS256, Algorithm::PS384, Algorithm::PS512] {
            assert!(!verified(SIGNED, other).unwrap(), "{other:?}");
        }
        for family in [Algorithm::HS256, Algorithm::ES256, Algorithm::EdDSA] {
            assert!(verified(SIGNED, family).is_err(), "{family:?}");
        }
        let (message, none) = (SIGNED.as_bytes(), DecodingKey::from_ec_der(MODULUS.as_bytes()));
        assert!(!verify(SIGNATURE, message, &none, Algorithm::ES256).unwrap(), "a malformed key verifies nothing");
    }
}
