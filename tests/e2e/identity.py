"""Certificates for 127.0.0.1, made on the spot."""
import datetime
import ipaddress
import os

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HOUR = datetime.timedelta(hours=1)


class Identity:
    """A certificate and its key, also as files."""

    def __init__(self, base, name, issuer=None, ca=False, ends=24 * HOUR):
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        by = issuer or self
        now = datetime.datetime.utcnow()
        self.cert = (x509.CertificateBuilder().subject_name(self.name).issuer_name(by.name).public_key(self.key.public_key())
                     .serial_number(x509.random_serial_number()).not_valid_before(now - 48 * HOUR).not_valid_after(now + ends)
                     .add_extension(x509.BasicConstraints(ca, None), True)
                     .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
                     .sign(by.key, hashes.SHA256()))
        self.pem = base / f"{name}.pem"
        self.key_pem = base / f"{name}.key"
        self.write(self.pem, self.key_pem)

    def write(self, cert_file=None, key_file=None):
        """In the place of what was there, at one stroke each."""
        texts = [(key_file, self.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                                   serialization.NoEncryption())),
                 (cert_file, self.cert.public_bytes(serialization.Encoding.PEM))]
        for file, text in texts:
            if file:
                new = file.with_suffix(".new")
                new.touch(0o600)
                new.write_bytes(text)
                os.replace(new, file)
