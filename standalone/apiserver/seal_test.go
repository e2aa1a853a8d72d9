package apiserver_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/apiserver/seal"
	"volplane.dev/volplane/standalone/standalonetest"
)

const hidden = "SENTINEL-4242"

// holders returns the files below a directory with the sentinel in them.
func holders(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(hidden)) ||
			bytes.Contains(data, []byte(base64.StdEncoding.EncodeToString([]byte(hidden)))) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// keepSecret creates a Secret and a ConfigMap, and stops the server.
func keepSecret(t *testing.T, s *apiserver.Server) {
	t.Helper()
	admin := standalonetest.Client(t, s, "")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{"password": []byte(hidden)}}
	if _, err := admin.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := admin.CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	s.Stop()
}

// TestSecretsOnDisk: no file of the data directory has the content of a Secret; with the key the Secret can be read
// again, and without it nothing starts.
func TestSecretsOnDisk(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	o := apiserver.Options{DataDir: dir, Listen: "127.0.0.1:0", NoSync: true}
	keepSecret(t, start(t, o))
	if found := holders(t, dir); len(found) > 0 {
		t.Errorf("the Secret is in %v", found)
	}
	key := filepath.Join(dir, "pki", "encryption.yaml")
	if err := os.Rename(key, key+".away"); err != nil {
		t.Fatal(err)
	}
	if s, err := apiserver.Start(t.Context(), o); !errors.Is(err, seal.ErrUnreadable) {
		if err == nil {
			s.Stop()
		}
		t.Fatalf("a start without the key: %v", err)
	}
	if err := os.Rename(key+".away", key); err != nil {
		t.Fatal(err)
	}
	s := start(t, o)
	defer s.Stop()
	got, err := standalonetest.Client(t, s, "").CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{})
	if err != nil || string(got.Data["password"]) != hidden {
		t.Errorf("the Secret is %v, %v", got.Data, err)
	}
}

const inClear = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources: [{resources: [secrets], providers: [{identity: {}}]}]
`

// TestSecretsOfBefore: the data directory of a version that knew of no encryption.
func TestSecretsOfBefore(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := filepath.Join(dir, "clear.yaml")
	if err := os.WriteFile(file, []byte(inClear), 0o600); err != nil {
		t.Fatal(err)
	}
	o := apiserver.Options{DataDir: dir, Listen: "127.0.0.1:0", NoSync: true, EncryptionConfig: file}
	keepSecret(t, start(t, o))
	db := filepath.Join(dir, "etcd", "member", "member", "snap")
	if found := holders(t, db); len(found) != 1 {
		t.Fatalf("in clear: the Secret is in %v: the test sees nothing", found)
	}
	o.EncryptionConfig = ""
	s := start(t, o)
	got, err := standalonetest.Client(t, s, "").CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{})
	if err != nil || string(got.Data["password"]) != hidden {
		t.Errorf("the Secret is %v, %v", got.Data, err)
	}
	s.Stop()
	if found := holders(t, db); len(found) > 0 {
		t.Errorf("encrypted: the Secret is in %v", found)
	}
}
