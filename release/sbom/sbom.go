// Package sbom writes which modules and packages are in what is released, as CycloneDX 1.6.
package sbom

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Program is a built program.
type Program struct {
	// Name is its name, Path where it is.
	Name, Path string
}

// Debian is a package of Debian, of which an image has files.
type Debian struct {
	Name, Version, Arch string
	// SHA256 is the sum of the package.
	SHA256 string
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	Hashes     []hash     `json:"hashes,omitempty"`
	PURL       string     `json:"purl,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref string   `json:"ref"`
	On  []string `json:"dependsOn,omitempty"`
}

type document struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Serial       string       `json:"serialNumber"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Time      string    `json:"timestamp"`
	Component component `json:"component"`
}

// Write returns the document about the programs, whose build says what they are made of, and about an image's packages.
func Write(version string, when time.Time, programs []Program, packages []Debian) ([]byte, error) {
	all := component{Type: "application", Ref: "volplane", Name: "volplane", Version: version}
	doc := document{
		Format: "CycloneDX", Spec: "1.6", Version: 1,
		Metadata: metadata{Time: when.UTC().Format(time.RFC3339), Component: all},
	}
	root := dependency{Ref: all.Ref}
	seen := map[string]component{}
	for _, p := range programs {
		info, err := buildinfo.ReadFile(p.Path)
		if err != nil {
			return nil, fmt.Errorf("read how %s was built: %w", p.Name, err)
		}
		c := component{Type: "application", Ref: "program:" + p.Name, Name: p.Name, Version: version}
		d := dependency{Ref: c.Ref}
		for _, m := range modules(info, version) {
			seen[m.Ref] = m
			d.On = append(d.On, m.Ref)
		}
		slices.Sort(d.On)
		seen[c.Ref] = c
		root.On = append(root.On, c.Ref)
		doc.Dependencies = append(doc.Dependencies, d)
	}
	for _, p := range packages {
		c := p.component()
		seen[c.Ref] = c
		root.On = append(root.On, c.Ref)
	}
	for _, c := range seen {
		doc.Components = append(doc.Components, c)
	}
	slices.SortFunc(doc.Components, func(a, b component) int { return cmp.Compare(a.Ref, b.Ref) })
	doc.Dependencies = append([]dependency{root}, doc.Dependencies...)
	if err := doc.number(); err != nil {
		return nil, err
	}
	out, err := json.MarshalIndent(doc, "", "  ")
	return append(out, '\n'), err
}

// number gives the document a number that follows from what it says.
func (d *document) number() error {
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	id := sum[:16]
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // version 8: a custom UUID
	d.Serial = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	return nil
}

// modules returns the modules of a program, with the one of Go's own library.
func modules(info *debug.BuildInfo, version string) []component {
	out := []component{{
		Type: "library", Ref: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go"), Name: "std",
		Version: strings.TrimPrefix(info.GoVersion, "go"), PURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go"),
	}}
	for _, m := range info.Deps {
		if m.Replace != nil && strings.HasPrefix(m.Replace.Path, ".") {
			// A part of this source, which has its version.
			m = &debug.Module{Path: m.Path, Version: version}
		} else if m.Replace != nil {
			m = m.Replace
		}
		purl := "pkg:golang/" + m.Path + "@" + url.PathEscape(m.Version)
		c := component{Type: "library", Ref: purl, Name: m.Path, Version: m.Version, PURL: purl}
		if m.Sum != "" {
			c.Properties = []property{{Name: "go:sum", Value: m.Sum}}
		}
		out = append(out, c)
	}
	return out
}

func (d Debian) component() component {
	purl := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", d.Name, url.QueryEscape(d.Version), d.Arch)
	return component{
		Type: "library", Ref: purl, Name: d.Name, Version: d.Version, PURL: purl,
		Hashes: []hash{{Algorithm: "SHA-256", Content: d.SHA256}},
	}
}
