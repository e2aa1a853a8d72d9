package apiserver_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/backup"
	"volplane.dev/volplane/standalone/external"
	"volplane.dev/volplane/standalone/standalonetest"
)

// unpack makes a data directory in the state in which the program of a commit left it.
func unpack(t *testing.T, commit, dir string) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", commit+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(z); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil && !filepath.IsLocal(h.Name) {
			err = errors.New("no path of a data directory: " + h.Name)
		}
		if err != nil {
			t.Fatal(err)
		}
		put(t, files, h, filepath.Join(dir, h.Name))
	}
}

func put(t *testing.T, from io.Reader, h *tar.Header, path string) {
	t.Helper()
	if h.Typeflag == tar.TypeDir {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		return
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := io.CopyN(out, from, h.Size); err != nil {
		t.Fatal(err)
	}
}

// TestEarlierVersions: a data directory of each earlier layout starts with this version, which backs it up before it
// changes it, and reports that; a directory restored from the backup starts as well.
func TestEarlierVersions(t *testing.T) {
	t.Parallel()
	for commit, names := range map[string][]string{
		// The first that had a data directory, after an ordinary stop.
		"fb75fc6": {"one", "two"},
		// One with controllers, a node agent and a driver, killed.
		"a293080": {"one"},
	} {
		t.Run(commit, func(t *testing.T) {
			dir := shortDir(t)
			unpack(t, commit, dir)
			var log bytes.Buffer
			o := apiserver.Options{
				DataDir: dir, Listen: "127.0.0.1:0", NoSync: true, Version: "v9", Log: slog.New(slog.NewTextHandler(&log, nil)),
			}
			holds(t, o, names)
			said := regexp.MustCompile(`backup=(\S+)`).FindStringSubmatch(log.String())
			if said == nil || !strings.Contains(log.String(), "an older version") {
				t.Fatalf("it says %q", &log)
			}
			log.Reset()
			holds(t, o, names)
			if log.Len() > 0 {
				t.Errorf("the second start says %q", &log)
			}
			o.DataDir = shortDir(t)
			if _, err := backup.Restore(t.Context(), said[1], o.DataDir, external.Options{}, time.Now()); err != nil {
				t.Fatal(err)
			}
			holds(t, o, names)
		})
	}
}

// holds starts a server that has the ConfigMaps, and stops it.
func holds(t *testing.T, o apiserver.Options, names []string) {
	t.Helper()
	s := start(t, o)
	defer s.Stop()
	for _, name := range names {
		m, err := standalonetest.Client(t, s, "").CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || m.Data["k"] != "one" && m.Data["k"] != "two" {
			t.Errorf("%s holds %v, %v", name, m.Data, err)
		}
	}
}
