package snapshotmetadata

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"volplane.dev/volplane/internal/sidecar"
)

// TLS returns the configuration that the options describe. Each handshake checks the certificate files, and reads them
// again when they have changed.
func TLS(o sidecar.SnapshotMetadataOptions, log *slog.Logger) (*tls.Config, error) {
	version, errVersion := minVersion(o.MinVersion)
	suites, errSuites := named("--tls-cipher-suites", o.CipherSuites, suiteOf)
	curves, errCurves := named("--tls-curve-preferences", o.CurvePreferences, curveOf)
	if err := errors.Join(errVersion, errSuites, errCurves); err != nil {
		return nil, err
	}
	c := &certificate{cert: o.Cert, key: o.Key, log: log}
	if err := c.read(); err != nil {
		return nil, err
	}
	return &tls.Config{
		GetCertificate: c.get, MinVersion: version, CipherSuites: suites, CurvePreferences: curves,
	}, nil
}

func minVersion(name string) (uint16, error) {
	switch name {
	case "", "VersionTLS12":
		return tls.VersionTLS12, nil
	case "VersionTLS13":
		return tls.VersionTLS13, nil
	}
	return 0, fmt.Errorf("--tls-min-version %q is neither VersionTLS12 nor VersionTLS13", name)
}

// named returns the values of names separated by commas; nil for an empty list.
func named[T any](flag, text string, of func(string) (T, bool)) ([]T, error) {
	var out []T
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		value, ok := of(name)
		if !ok {
			return nil, fmt.Errorf("%s: %q is unknown to Go, or not safe", flag, name)
		}
		out = append(out, value)
	}
	return out, nil
}

// suiteOf returns a cipher suite that is safe.
func suiteOf(name string) (uint16, bool) {
	all := tls.CipherSuites()
	i := slices.IndexFunc(all, func(s *tls.CipherSuite) bool { return s.Name == name })
	if i < 0 {
		return 0, false
	}
	return all[i].ID, true
}

func curveOf(name string) (tls.CurveID, bool) {
	id, ok := map[string]tls.CurveID{
		"X25519": tls.X25519, "CurveP256": tls.CurveP256, "CurveP384": tls.CurveP384, "CurveP521": tls.CurveP521,
		"X25519MLKEM768": tls.X25519MLKEM768,
	}[name]
	return id, ok
}

// certificate is a certificate whose files may be replaced. It is safe for concurrent use.
type certificate struct {
	cert, key string
	log       *slog.Logger

	mu   sync.Mutex
	pair *tls.Certificate
	// seen is what the files looked like when they were read.
	seen [2]look
}

// look is what changes when a file is replaced.
type look struct {
	written time.Time
	size    int64
}

// get returns the certificate for a handshake. One that cannot be read, perhaps because only half of it is replaced
// yet, leaves the one before it in use.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, err := c.look(); err == nil && now == c.seen {
		return c.pair, nil
	}
	if err := c.read(); err != nil {
		c.log.Warn("the certificate cannot be read; the one before it stays in use", "err", err)
	}
	return c.pair, nil
}

// read reads the files.
func (c *certificate) read() error {
	now, err := c.look()
	if err != nil {
		return fmt.Errorf("certificate of the service: %w", err)
	}
	c.seen = now
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return fmt.Errorf("certificate of the service: %w", err)
	}
	c.pair = &pair
	return nil
}

func (c *certificate) look() (all [2]look, err error) {
	for i, path := range []string{c.cert, c.key} {
		info, err := os.Stat(path)
		if err != nil {
			return all, err
		}
		all[i] = look{info.ModTime(), info.Size()}
	}
	return all, nil
}
