package flex

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit/golden"
)

const configHead = "apiVersion: volplane.dev/v1alpha1\nkind: FlexConfig\n"

func exampleConfig(t *testing.T) Config {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := ParseConfig(b)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConfig(t *testing.T) {
	c := exampleConfig(t)
	lofs := c.Of(Name{"example.com", "lofs"})
	want := Settings{
		VolumeName: NameOfVolume, Timeout: metav1.Duration{Duration: time.Minute},
		WaitTimeout: metav1.Duration{Duration: 3 * time.Minute}, Provision: true, SkipExpandVolume: true,
	}
	if lofs != want {
		t.Errorf("settings: %+v", lofs)
	}
	other := c.Of(Name{"", "lofs"})
	for _, l := range []struct {
		s    Settings
		op   Operation
		want time.Duration
	}{
		{lofs, OpInit, 10 * time.Second},
		{lofs, OpMount, time.Minute},
		{lofs, OpWaitForAttach, 3 * time.Minute},
		{other, OpInit, 10 * time.Second},
		{other, OpMount, 5 * time.Minute},
		{other, OpWaitForAttach, 10 * time.Minute},
	} {
		if got := l.s.Limit(l.op); got != l.want {
			t.Errorf("%+v: %s may take %s, want %s", l.s, l.op, got, l.want)
		}
	}
}

func TestConfigRefused(t *testing.T) {
	var b strings.Builder
	for _, text := range []string{
		"", "kind: FlexConfig", "apiVersion: volplane.dev/v2\nkind: FlexConfig", "[]", "\x00", ": :",
		configHead + "alow: []", configHead + "allow:", configHead + "allow: null", configHead + "kind: FlexConfig",
		configHead + "allow: [{driver: a/b/c}]", configHead + "allow: [{}]",
		configHead + "allow: [{driver: lofs, options: {a: '('}}]",
		configHead + "allow: [{driver: lofs, options: {a: 'x)|(y'}}]", configHead + "allow: [{driver: lofs, namespace: x}]",
		configHead + "drivers: {'a b': {}}", configHead + "drivers: {lofs: {volumeName: pod}}",
		configHead + "drivers: {lofs: {timeout: -1s}}",
		configHead + "drivers: {lofs: {timeout: soon}}", configHead + "drivers: {lofs: {timeout: 1s, limit: 2s}}",
	} {
		_, err := ParseConfig([]byte(text))
		if !errors.Is(err, ErrConfig) {
			t.Errorf("%q: %v", text, err)
			continue
		}
		fmt.Fprintf(&b, "%q:\n\t%s\n", strings.TrimPrefix(text, configHead), strings.Join(strings.Fields(err.Error()), " "))
	}
	golden.Equal(t, "testdata/config-refused.txt", b.String())
	if _, err := ParseConfig([]byte(configHead + strings.Repeat("#", maxConfig))); !errors.Is(err, ErrConfig) {
		t.Errorf("too long: %v", err)
	}
	for _, text := range []string{configHead, configHead + "allow: []", configHead + "drivers: {lofs: {}}"} {
		if _, err := ParseConfig([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestPolicy: one rule has to fit the namespace, the driver and all options.
func TestPolicy(t *testing.T) {
	var b strings.Builder
	p := exampleConfig(t).Policy
	lofs := Name{"example.com", "lofs"}
	for _, c := range []struct {
		name, namespace string
		p               Policy
		n               Name
		options         map[string]string
	}{
		{"no policy", "shop", nil, lofs, map[string]string{"any": "thing"}},
		{"no rules", "shop", Policy{}, lofs, nil},
		{"fits", "shop", p, lofs, map[string]string{"file": "a.img"}},
		{"without options", "shop", p, lofs, nil},
		{"value does not match", "shop", p, lofs, map[string]string{"file": "../a.img"}},
		{"part of the value matches", "shop", p, lofs, map[string]string{"file": "a.img\n; x"}},
		{"one of two options fits each rule", "shop", p, lofs, map[string]string{"file": "a.img", "size": "1G"}},
		{"second rule", "shop", p, lofs, map[string]string{"size": "1G"}},
		{"option that is not named", "shop", p, lofs, map[string]string{"opts": "exec"}},
		{"other namespace", "bank", p, lofs, map[string]string{"file": "a.img"}},
		{"other driver", "shop", p, Name{"", "lofs"}, nil},
		{"every option of every driver", "trusted", p, Name{"", "x"}, map[string]string{"a": "b\nc", "": ""}},
		{"driver for all namespaces", "bank", p, Name{"example.com", "scratch"}, nil},
		{"no option is named", "bank", p, Name{"example.com", "scratch"}, map[string]string{"a": ""}},
		{"a pattern that is none", "shop", Policy{
			{Driver: "*", Options: map[string]string{"a": "x)|(.*"}},
		}, lofs, map[string]string{"a": "x"}},
	} {
		allowed, why := c.p.Allow(c.namespace, c.n, "", c.options)
		fmt.Fprintf(&b, "%s: %v, %s: %s\n", c.name, allowed, why.Reason, why.Message)
	}
	typed := Policy{{Driver: "*", Options: map[string]string{KeyFSType: "ext4|xfs"}}}
	for _, c := range []struct {
		p      Policy
		fsType string
	}{{nil, "proc"}, {p, "xfs"}, {typed, "xfs"}, {typed, "xfs,proc"}, {typed, ""}, {
		Policy{{Driver: "*", Options: map[string]string{"*": ".*"}}}, "xfs",
	}} {
		allowed, why := c.p.Allow("shop", lofs, c.fsType, nil)
		fmt.Fprintf(&b, "filesystem %q: %v, %s: %s\n", c.fsType, allowed, why.Reason, why.Message)
	}
	golden.Equal(t, "testdata/policy.txt", b.String())
}
