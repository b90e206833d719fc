"""The law in virtual time: scenarios, the closed loop, what the law is compared with, and what came of it."""
