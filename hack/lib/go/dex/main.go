// Command dex is the OpenID Connect provider of that name, with clients and users of one file, kept in memory. Its own command brings
// storages that need a C compiler. The file is the one argument: JSON, with the fields of `configuration`.
package main

import (
	"context"
	"encoding/json"
	"log"
	"net/http"
	"os"

	"github.com/dexidp/dex/server"
	"github.com/dexidp/dex/storage"
	"github.com/dexidp/dex/storage/memory"
	"github.com/sirupsen/logrus"
)

type configuration struct {
	Issuer      string
	Address     string
	Certificate string // a file, as Key
	Key         string
	Clients     []storage.Client
	Users       []struct {
		Email string
		Hash  string // of bcrypt
	}
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: dex FILE")
	}
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var asked configuration
	if err := json.Unmarshal(text, &asked); err != nil {
		log.Fatal(err)
	}
	logger := logrus.New()
	users := []storage.Password{}
	for _, one := range asked.Users {
		users = append(users, storage.Password{Email: one.Email, Hash: []byte(one.Hash), Username: one.Email, UserID: one.Email})
	}
	kept := storage.WithStaticClients(memory.New(logger), asked.Clients)
	kept = storage.WithStaticPasswords(kept, users, logger)
	kept = storage.WithStaticConnectors(kept, []storage.Connector{
		{ID: server.LocalConnector, Type: server.LocalConnector, Name: "Password"},
	})
	handler, err := server.NewServer(context.Background(), server.Config{
		Issuer:             asked.Issuer,
		Storage:            kept,
		SkipApprovalScreen: true,
		Logger:             logger,
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServeTLS(asked.Address, asked.Certificate, asked.Key, handler))
}
