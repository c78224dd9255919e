"""A page blob of azurite, with Microsoft's own client: prints its SAS URL, or later the SHA-256 of its content.

    azure_blob.py http://127.0.0.1:10000 create BYTES
    azure_blob.py http://127.0.0.1:10000 read
"""

import datetime
import hashlib
import json
import sys

from azure.storage.blob import BlobSasPermissions, BlobServiceClient, generate_blob_sas

# Azurite's account and key are the same in every installation, and documented.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER, BLOB = "uploads", "disk"


def main():
    base, action = sys.argv[1], sys.argv[2]
    service = BlobServiceClient(f"{base}/{ACCOUNT}", credential=KEY)
    blob = service.get_blob_client(CONTAINER, BLOB)
    if action == "read":
        print(json.dumps(hashlib.sha256(blob.download_blob().readall()).hexdigest()))
        return
    service.create_container(CONTAINER)
    blob.create_page_blob(int(sys.argv[3]))
    end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    permission = BlobSasPermissions(read=True, write=True)
    token = generate_blob_sas(ACCOUNT, CONTAINER, BLOB, account_key=KEY, permission=permission, expiry=end)
    print(json.dumps(f"{blob.url}?{token}"))


main()
