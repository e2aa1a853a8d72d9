// Command release makes everything that is released of this source, in one directory: archives, packages, container
// images, the kubectl plugin, a list of their contents, and the sums of all of it. The same source gives the same
// bytes.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"volplane.dev/volplane/release/packages"
	"volplane.dev/volplane/release/tools"
)

// homepage is where people find the program.
const homepage = "https://volplane.dev"

// release is what is made, and where.
type release struct {
	// root is the directory of the source, out the one that the results are written to.
	root, out string
	// version is the version, as git describes it.
	version string
	// when is the time of all files.
	when time.Time
	// platforms are the architectures of Linux for which everything is made.
	platforms []string
	// repository is the part of images' names before their own.
	repository string
	// url is where the archives will be loaded from.
	url string
	// key is the private key for the signature; empty means none.
	key string
	// bin is a directory with built programs, in a folder for each architecture.
	bin string

	// tools are the packages of Debian in the node's image.
	tools []tools.Package
	// licenses are those of the modules that the programs are built of.
	licenses string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	r, err := parse(os.Args[1:])
	if err == nil {
		err = r.make(ctx)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// parse returns the release that a command line describes.
func parse(args []string) (*release, error) {
	r := &release{}
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	f.StringVar(&r.root, "root", ".", "directory of the source")
	f.StringVar(&r.out, "out", "dist", "directory of the results, which is emptied first")
	f.StringVar(&r.version, "version", "", "version, such as v0.1.0")
	platforms := f.String("platforms", "amd64,arm64", "architectures of Linux for programs, packages and images")
	f.StringVar(&r.repository, "repository", "localhost/volplane", "what the names of images begin with")
	f.StringVar(&r.url, "url", "", "where the archives will be loaded from (default "+homepage+"/releases/VERSION)")
	f.StringVar(&r.key, "key", "", "private key of ssh-keygen that signs SHA256SUMS; empty for no signature")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	r.platforms = strings.Split(*platforms, ",")
	if r.version == "" {
		return nil, fmt.Errorf("name the version: -version v0.1.0")
	}
	r.url = cmp.Or(r.url, homepage+"/releases/"+r.version)
	var err error
	if r.root, err = filepath.Abs(r.root); err != nil {
		return nil, err
	}
	if r.out, err = filepath.Abs(r.out); err != nil {
		return nil, err
	}
	r.when, err = sourceTime(r.root)
	return r, err
}

// sourceTime returns the time that all files get: $SOURCE_DATE_EPOCH, or that of the commit.
func sourceTime(root string) (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		out, err := exec.Command("git", "-C", root, "log", "-1", "--format=%ct").Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("set SOURCE_DATE_EPOCH: the time of the commit is not known: %w", err)
		}
		text = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// make makes everything, one kind after another.
func (r *release) make(ctx context.Context) (err error) {
	if err := r.empty(); err != nil {
		return err
	}
	if r.bin, err = os.MkdirTemp("", "volplane-release-"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// Half a release would be refused as unknown content the next time.
			err = errors.Join(err, os.RemoveAll(r.out))
		}
		err = errors.Join(err, os.RemoveAll(r.bin))
	}()
	for _, step := range []struct {
		what string
		make func(context.Context) error
	}{
		{"programs", r.build},
		{"licenses", r.collect},
		{"archives and packages", r.hosts},
		{"images", r.images},
		{"plugin of kubectl", r.plugin},
		{"chart", r.chart},
		{"list of what is in them", r.contents},
		{"sums", r.sums},
	} {
		fmt.Fprintln(os.Stderr, "==", step.what)
		if err := step.make(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// empty makes the directory for the results, and removes earlier results. It refuses a directory with anything else.
func (r *release) empty() error {
	if err := os.MkdirAll(r.out, 0o755); err != nil { // #nosec G301 -- what is released is for everybody
		return err
	}
	old, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(r.out, sumsFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range old {
		listed := strings.Contains(string(sums), "  "+e.Name()+"\n")
		if !listed && e.Name() != sumsFile && e.Name() != sumsFile+signed {
			return fmt.Errorf("%s has %s in it, which is not of a release: name another directory, or empty it", r.out, e.Name())
		}
	}
	for _, e := range old {
		if err := os.RemoveAll(filepath.Join(r.out, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// write writes a result.
func (r *release) write(name string, data []byte) error {
	at := filepath.Join(r.out, name)
	if err := os.WriteFile(at, data, 0o644); err != nil { // #nosec G306 -- as above
		return err
	}
	return nil
}

// number returns the version in names of files: that of the packages.
func (r *release) number() string { return packages.Version(r.version) }
