#!/usr/bin/env python3
"""As much of an S3 server as s3fs needs, in memory: objects with their metadata, copies and lists. Everybody may do all.

Its argument is the port.
"""
import hashlib
import http.server
import re
import signal
import sys
import threading
import urllib.parse
from email.utils import formatdate
from xml.sax.saxutils import escape

OBJECTS, LOCK = {}, threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    """A request for /BUCKET/KEY."""

    protocol_version = 'HTTP/1.1'

    def answer(self, status, body=b'', headers=None):
        self.send_response(status)
        headers = {'Content-Length': str(len(body)), **(headers or {})}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    def handle_any(self):
        path, _, query = self.path.partition('?')
        path = urllib.parse.unquote(path)
        body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        key = path.strip('/').partition('/')[2]
        with LOCK:
            if self.command in ('GET', 'HEAD') and not key:
                self.list(path.strip('/'), urllib.parse.parse_qs(query, keep_blank_values=True))
            else:
                getattr(self, self.command.lower())(path, body)

    do_GET = do_HEAD = do_PUT = do_DELETE = handle_any

    def get(self, path, _):
        if path not in OBJECTS:
            self.answer(404)
            return
        data, headers = OBJECTS[path]
        span = re.fullmatch(r'bytes=(\d+)-(\d*)', self.headers.get('Range') or '')
        if not span:
            self.answer(200, data, dict(headers, **{'Content-Length': str(len(data))}))
            return
        first, last = int(span[1]), min(int(span[2] or len(data)), len(data) - 1)
        part = data[first:last + 1]
        self.answer(206, part, dict(headers, **{'Content-Range': f'bytes {first}-{last}/{len(data)}'}))

    head = get

    def put(self, path, body):
        source = urllib.parse.unquote(self.headers.get('x-amz-copy-source') or '')
        if source and '/' + source.lstrip('/') not in OBJECTS:
            self.answer(404)
            return
        if source:
            body = OBJECTS['/' + source.lstrip('/')][0]
        tag = '"' + hashlib.md5(body).hexdigest() + '"'
        OBJECTS[path] = body, {
            'ETag': tag, 'Last-Modified': formatdate(usegmt=True),
            **{n: v for n, v in self.headers.items() if n.lower().startswith('x-amz-meta-') or n.lower() == 'content-type'}}
        copied = f'<CopyObjectResult><ETag>{escape(tag)}</ETag></CopyObjectResult>' if source else ''
        self.answer(200, copied.encode(), {'ETag': tag})

    def delete(self, path, _):
        OBJECTS.pop(path, None)
        self.answer(204)

    def list(self, bucket, query):
        prefix, delimiter = query.get('prefix', [''])[0], query.get('delimiter', [''])[0]
        contents, folders = '', set()
        for path in sorted(OBJECTS):
            where, _, key = path[1:].partition('/')
            if where != bucket or not key.startswith(prefix):
                continue
            head, found, _ = key[len(prefix):].partition(delimiter) if delimiter else (key, '', '')
            if found:
                folders.add(prefix + head + delimiter)
                continue
            data, headers = OBJECTS[path]
            contents += (f'<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size>'
                         f'<ETag>{escape(headers["ETag"])}</ETag></Contents>')
        contents += ''.join(f'<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>' for f in sorted(folders))
        self.answer(200, (f'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                          f'<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>'
                          f'{contents}</ListBucketResult>').encode(), {'Content-Type': 'application/xml'})

    def log_message(self, *_):
        """Print nothing."""


signal.signal(signal.SIGINT, signal.SIG_DFL)
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
