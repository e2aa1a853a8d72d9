// Package sbom writes which modules and packages a release contains, as CycloneDX 1.6.
package sbom

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// Program is a built program.
type Program struct {
	// Name is its name, Path where it is.
	Name, Path string
}

// Debian is a Debian package from which an image has files.
type Debian struct {
	Name, Version, Arch string
	// SHA256 is the sum of the package.
	SHA256 string
}

// Write returns the document about the programs, whose build information lists their modules, and about an image's
// packages.
func Write(version string, when time.Time, programs []Program, packages []Debian) ([]byte, error) {
	all := cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: "volplane", Name: "volplane", Version: version}
	root := cdx.Dependency{Ref: all.BOMRef, Dependencies: &[]string{}}
	var others []cdx.Dependency
	seen := map[string]cdx.Component{}
	for _, p := range programs {
		info, err := buildinfo.ReadFile(p.Path)
		if err != nil {
			return nil, fmt.Errorf("read how %s was built: %w", p.Name, err)
		}
		c := cdx.Component{
			Type: cdx.ComponentTypeApplication, BOMRef: "program:" + p.Name, Name: p.Name, Version: version,
		}
		var on []string
		for _, m := range modules(info, version) {
			seen[m.BOMRef] = m
			on = append(on, m.BOMRef)
		}
		slices.Sort(on)
		seen[c.BOMRef] = c
		*root.Dependencies = append(*root.Dependencies, c.BOMRef)
		others = append(others, cdx.Dependency{Ref: c.BOMRef, Dependencies: &on})
	}
	for _, p := range packages {
		c := p.component()
		seen[c.BOMRef] = c
		*root.Dependencies = append(*root.Dependencies, c.BOMRef)
	}
	components := slices.SortedFunc(maps.Values(seen), func(a, b cdx.Component) int {
		return strings.Compare(a.BOMRef, b.BOMRef)
	})
	dependencies := append([]cdx.Dependency{root}, others...)
	doc := cdx.NewBOM()
	doc.Metadata = &cdx.Metadata{Timestamp: when.UTC().Format(time.RFC3339), Component: &all}
	doc.Components, doc.Dependencies = &components, &dependencies
	// The number is derived from the content, so the same programs have the same one.
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	doc.SerialNumber = uuid.NewHash(sha256.New(), uuid.NameSpaceURL, text, 8).URN()
	var out bytes.Buffer
	err = cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(doc, cdx.SpecVersion1_6)
	return out.Bytes(), err
}

// modules returns the modules of a program, with the one of Go's own library.
func modules(info *debug.BuildInfo, version string) []cdx.Component {
	out := []cdx.Component{library("golang/std", "std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		if m.Replace != nil && strings.HasPrefix(m.Replace.Path, ".") {
			// A part of this source, which has its version.
			m = &debug.Module{Path: m.Path, Version: version}
		} else if m.Replace != nil {
			m = m.Replace
		}
		c := library("golang/"+m.Path, m.Path, m.Version)
		if m.Sum != "" {
			c.Properties = &[]cdx.Property{{Name: "go:sum", Value: m.Sum}}
		}
		out = append(out, c)
	}
	return out
}

func (d Debian) component() cdx.Component {
	c := library("deb/debian/"+d.Name, d.Name, d.Version)
	c.PackageURL += "?arch=" + d.Arch
	c.BOMRef = c.PackageURL
	c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: d.SHA256}}
	return c
}

// library returns the component that a package URL names.
func library(of, name, version string) cdx.Component {
	purl := "pkg:" + of + "@" + url.QueryEscape(version)
	return cdx.Component{
		Type: cdx.ComponentTypeLibrary, BOMRef: purl, Name: name, Version: version, PackageURL: purl,
	}
}
